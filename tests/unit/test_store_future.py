"""The answers of a store, while they are still on their way."""

import asyncio
import threading

import pytest

from stoppable.errors import StoreError
from stoppable.stores.base import StoreFuture, settle

SOON = 30.0


def on_thread(call):
    """Start a thread, and return what waits for what it returned."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()

    def joined():
        thread.join(SOON)
        assert not thread.is_alive()
        return results[0]

    return joined


def test_a_call_that_is_made_now_has_its_answer():
    assert StoreFuture.of(lambda: 1).result() == 1
    with pytest.raises(ZeroDivisionError):
        StoreFuture.of(lambda: 1 // 0).result()


async def test_an_answer_is_awaited_by_many():
    future = StoreFuture()

    async def wait():
        return await future

    tasks = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    on_thread(lambda: settle([(future, "there", None)]))()
    async with asyncio.timeout(SOON):
        assert await asyncio.gather(*tasks) == ["there"] * 3
        assert await future == "there"


async def test_an_error_is_raised_for_each_who_waits():
    future = StoreFuture()

    async def wait():
        with pytest.raises(ValueError, match="no"):
            await future
        return True

    tasks = [asyncio.create_task(wait()) for _ in range(2)]
    await asyncio.sleep(0)
    settle([(future, None, ValueError("no"))])
    async with asyncio.timeout(SOON):
        assert await asyncio.gather(*tasks) == [True, True]
    with pytest.raises(ValueError, match="no"):
        future.result()


async def test_who_is_cancelled_while_waiting_disturbs_no_other():
    future = StoreFuture()

    async def wait():
        return await future

    gives_up, stays = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    gives_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    settle([(future, 1, None)])
    async with asyncio.timeout(SOON):
        assert await stays == 1


async def test_who_is_cancelled_when_the_answer_is_on_its_way_is_cancelled():
    future = StoreFuture()

    async def wait():
        return await future

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    settle([(future, 1, None)])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await future == 1


def test_one_answer_wakes_two_loops_and_a_thread():
    future = StoreFuture()
    waiting = threading.Barrier(4, timeout=SOON)

    async def wait():
        waiting.wait()
        async with asyncio.timeout(SOON):
            return await future

    def wait_here():
        waiting.wait()
        return future.result(SOON)

    waiters = [on_thread(lambda: asyncio.run(wait())) for _ in range(2)] + [on_thread(wait_here)]
    waiting.wait()
    settle([(future, "all", None)])
    assert [waiter() for waiter in waiters] == ["all"] * 3


class CountingLoop(asyncio.SelectorEventLoop):
    wakes = 0

    def call_soon_threadsafe(self, *args, **kwargs):
        self.wakes += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def test_many_answers_wake_a_loop_once():
    replies = [StoreFuture() for _ in range(50)]

    async def wait(future):
        return await future

    async def main(loop):
        tasks = [asyncio.create_task(wait(future)) for future in replies]
        await asyncio.sleep(0)
        before = loop.wakes
        settle([(future, number, None) for number, future in enumerate(replies)])
        async with asyncio.timeout(SOON):
            assert await asyncio.gather(*tasks) == list(range(50))
        return loop.wakes - before

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(main(runner.get_loop())) == 1


def test_answers_and_errors_in_one_batch_reach_their_own():
    good, bad, unheard = StoreFuture(), StoreFuture(), StoreFuture()
    settle([(good, 1, None), (bad, None, KeyError("x")), (unheard, 2, None)])
    assert (good.result(), unheard.result()) == (1, 2)
    with pytest.raises(KeyError):
        bad.result()


def test_an_answer_that_nobody_waits_for_any_more_harms_nobody():
    """The loop that waited is closed."""
    future, other = StoreFuture(), StoreFuture()
    loop = asyncio.new_event_loop()
    waiter = future.__await__()

    async def begin():
        waiter.send(None)

    loop.run_until_complete(begin())
    loop.close()
    told = []
    other.then(told.append)
    settle([(future, 1, None), (other, 2, None)])
    assert told == [other]
    assert future.result() == 1
    waiter.close()


def test_a_thread_waits_only_so_long():
    future = StoreFuture()
    with pytest.raises(StoreError, match="within 0 seconds"):
        future.result(0)
    settle([(future, "late", None)])
    assert future.result(0) == "late"


def test_what_follows_is_called_once_at_once_if_the_answer_is_there():
    future, seen = StoreFuture(), []
    future.then(lambda each: seen.append(("before", each.result())))
    assert seen == []
    settle([(future, 1, None)])
    future.then(lambda each: seen.append(("after", each.result())))
    assert seen == [("before", 1), ("after", 1)]


def test_what_follows_and_fails_keeps_no_other_waiting(caplog):
    failing, other = StoreFuture(), StoreFuture()
    failing.then(lambda future: future.result())
    waiter = on_thread(lambda: other.result(SOON))
    settle([(failing, None, ValueError("no")), (other, 1, None)])
    assert waiter() == 1
    assert "ValueError: no" in caplog.text


def test_no_answer_is_missed_by_those_who_begin_to_wait_while_it_comes():
    for _ in range(200):
        future, start = StoreFuture(), threading.Barrier(3, timeout=SOON)

        def wait(future=future, start=start):
            start.wait()
            return future.result(SOON)

        def give(future=future, start=start):
            start.wait()
            settle([(future, 1, None)])

        waiters = [on_thread(wait), on_thread(wait)]
        give()
        assert [waiter() for waiter in waiters] == [1, 1]

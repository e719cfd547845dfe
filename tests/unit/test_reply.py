"""The answers of a store, while they are still on their way."""

import asyncio
import threading

import pytest

from stoppable.errors import StoreError
from stoppable.stores.reply import Reply, settle

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
    assert Reply.of(lambda: 1).result() == 1
    with pytest.raises(ZeroDivisionError):
        Reply.of(lambda: 1 // 0).result()


async def test_an_answer_is_awaited_by_many():
    reply = Reply()

    async def wait():
        return await reply

    tasks = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    on_thread(lambda: settle([(reply, "there", None)]))()
    async with asyncio.timeout(SOON):
        assert await asyncio.gather(*tasks) == ["there"] * 3
        assert await reply == "there"


async def test_an_error_is_raised_for_each_who_waits():
    reply = Reply()

    async def wait():
        with pytest.raises(ValueError, match="no"):
            await reply
        return True

    tasks = [asyncio.create_task(wait()) for _ in range(2)]
    await asyncio.sleep(0)
    settle([(reply, None, ValueError("no"))])
    async with asyncio.timeout(SOON):
        assert await asyncio.gather(*tasks) == [True, True]
    with pytest.raises(ValueError, match="no"):
        reply.result()


async def test_who_is_cancelled_while_waiting_disturbs_no_other():
    reply = Reply()

    async def wait():
        return await reply

    gives_up, stays = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    gives_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    settle([(reply, 1, None)])
    async with asyncio.timeout(SOON):
        assert await stays == 1


async def test_who_is_cancelled_when_the_answer_is_on_its_way_is_cancelled():
    reply = Reply()

    async def wait():
        return await reply

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    settle([(reply, 1, None)])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await reply == 1


def test_one_answer_wakes_two_loops_and_a_thread():
    reply = Reply()
    waiting = threading.Barrier(4, timeout=SOON)

    async def wait():
        waiting.wait()
        async with asyncio.timeout(SOON):
            return await reply

    def wait_here():
        waiting.wait()
        return reply.result(SOON)

    waiters = [on_thread(lambda: asyncio.run(wait())) for _ in range(2)] + [on_thread(wait_here)]
    waiting.wait()
    settle([(reply, "all", None)])
    assert [waiter() for waiter in waiters] == ["all"] * 3


class CountingLoop(asyncio.SelectorEventLoop):
    wakes = 0

    def call_soon_threadsafe(self, *args, **kwargs):
        self.wakes += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def test_many_answers_wake_a_loop_once():
    replies = [Reply() for _ in range(50)]

    async def wait(reply):
        return await reply

    async def main(loop):
        tasks = [asyncio.create_task(wait(reply)) for reply in replies]
        await asyncio.sleep(0)
        before = loop.wakes
        settle([(reply, number, None) for number, reply in enumerate(replies)])
        async with asyncio.timeout(SOON):
            assert await asyncio.gather(*tasks) == list(range(50))
        return loop.wakes - before

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(main(runner.get_loop())) == 1


def test_answers_and_errors_in_one_batch_reach_their_own():
    good, bad, unheard = Reply(), Reply(), Reply()
    settle([(good, 1, None), (bad, None, KeyError("x")), (unheard, 2, None)])
    assert (good.result(), unheard.result()) == (1, 2)
    with pytest.raises(KeyError):
        bad.result()


def test_an_answer_that_nobody_waits_for_any_more_harms_nobody():
    """The loop that waited is closed."""
    reply, other = Reply(), Reply()
    loop = asyncio.new_event_loop()
    waiter = reply.__await__()

    async def begin():
        waiter.send(None)

    loop.run_until_complete(begin())
    loop.close()
    told = []
    other.then(told.append)
    settle([(reply, 1, None), (other, 2, None)])
    assert told == [other]
    assert reply.result() == 1
    waiter.close()


def test_a_thread_waits_only_so_long():
    reply = Reply()
    with pytest.raises(StoreError, match="within 0 seconds"):
        reply.result(0)
    settle([(reply, "late", None)])
    assert reply.result(0) == "late"


def test_what_follows_is_called_once_at_once_if_the_answer_is_there():
    reply, seen = Reply(), []
    reply.then(lambda each: seen.append(("before", each.result())))
    assert seen == []
    settle([(reply, 1, None)])
    reply.then(lambda each: seen.append(("after", each.result())))
    assert seen == [("before", 1), ("after", 1)]


def test_what_follows_and_fails_keeps_no_other_waiting(caplog):
    failing, other = Reply(), Reply()
    failing.then(lambda reply: reply.result())
    waiter = on_thread(lambda: other.result(SOON))
    settle([(failing, None, ValueError("no")), (other, 1, None)])
    assert waiter() == 1
    assert "ValueError: no" in caplog.text


def test_no_answer_is_missed_by_those_who_begin_to_wait_while_it_comes():
    for _ in range(200):
        reply, start = Reply(), threading.Barrier(3, timeout=SOON)

        def wait(reply=reply, start=start):
            start.wait()
            return reply.result(SOON)

        def give(reply=reply, start=start):
            start.wait()
            settle([(reply, 1, None)])

        waiters = [on_thread(wait), on_thread(wait)]
        give()
        assert [waiter() for waiter in waiters] == [1, 1]

"""Executors and pools whose calls belong to a run."""

import asyncio
import threading

import pytest

import stoppable
from stoppable._engine.threads import DaemonPool


async def test_the_executor_carries_the_run_and_skips_what_has_not_begun():
    started, release = threading.Event(), threading.Event()

    def tool(number):
        started.set()
        release.wait(60)
        return number, stoppable.current_run().name

    async def agent(executor):
        futures = [executor.submit(tool, number) for number in range(3)]
        await stoppable.to_thread(started.wait, 60)
        stoppable.current_run().stop("cooperative")
        release.set()
        return await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)

    with stoppable.ThreadPoolExecutor(max_workers=1) as executor:
        handle = await stoppable.spawn(agent, executor)
        outcome = await handle.outcome()
    first, *others = outcome.result
    assert first == (0, "agent")
    assert [type(other) for other in others] == [stoppable.AgentStopped] * 2


async def test_the_executor_is_one_of_concurrent_futures():
    executor = stoppable.ThreadPoolExecutor(max_workers=2)
    assert list(executor.map(lambda x: x + 1, range(5))) == [1, 2, 3, 4, 5]
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 / 0).result(5)
    release = threading.Event()
    running = [executor.submit(release.wait, 60) for _ in range(2)]
    while not all(future.running() for future in running):
        await asyncio.sleep(0.001)
    waiting = executor.submit(pytest.fail, "never called")
    executor.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    release.set()
    assert [future.result(5) for future in running] == [True, True]
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(print)


def test_the_pool_reuses_its_threads_and_lets_idle_ones_end(monkeypatch):
    monkeypatch.setattr("stoppable._engine.threads._IDLE_SECONDS", 0.05)  # ten seconds would be a slow test
    pool = DaemonPool("reused")
    seen = []
    for _ in range(3):
        done = threading.Event()
        pool.submit(lambda done=done: (seen.append(threading.current_thread()), done.set()))
        assert done.wait(60)
        while pool.is_busy():
            threading.Event().wait(0.001)
    assert len(set(seen)) == 1
    seen[0].join(60)
    assert not seen[0].is_alive()
    assert pool._threads == 0


def test_a_pool_whose_thread_cannot_be_started_drops_the_call_and_goes_on():
    """The system may have no thread to give: whoever asked is told, and what failed must not run later."""
    executor = stoppable.ThreadPoolExecutor(1)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _self: (_ for _ in ()).throw(RuntimeError("no more threads")))
        with pytest.raises(RuntimeError, match="no more threads"):
            executor.submit(seen.append, "refused")
    assert not executor._daemons.is_busy()
    executor.submit(seen.append, "later").result(5)
    assert seen == ["later"]
    waiter = threading.Thread(target=executor.shutdown, daemon=True)
    waiter.start()
    waiter.join(60)
    assert not waiter.is_alive()


def test_an_executor_that_was_shut_down_keeps_no_threads():
    """One for every request, as code that uses ``with`` has them, would fill the process with idle threads."""
    seen = []
    with stoppable.ThreadPoolExecutor(1) as executor:
        for _ in range(3):
            executor.submit(lambda: seen.append(threading.current_thread()))
    assert len(seen) == 3
    seen[0].join(60)
    assert not seen[0].is_alive()
    assert not executor._daemons.is_busy()


async def test_the_default_executor_of_our_own_loops_carries_the_run():
    async def agent():
        return await asyncio.get_running_loop().run_in_executor(None, lambda: stoppable.current_run().name)

    assert await stoppable.to_thread(stoppable.run, agent) == "agent"

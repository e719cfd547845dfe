"""What handles offer to code that wraps somebody else's: join, streams that end with the body, receipts."""

import asyncio
import os
import signal
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable import InvalidArgument, Supervisor, sync


async def test_join_passes_a_cancel_from_outside_on_and_does_not_wait():
    begun = asyncio.Event()

    async def body():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            with stoppable.shielded(5):
                await asyncio.sleep(0.05)

    handle = await stoppable.spawn(body)
    waiter = asyncio.create_task(handle.join())
    await begun.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert handle.run.outcome is None
    outcome = await handle.outcome()
    assert (outcome.status, outcome.reason.kind) == ("stopped", "external")


async def test_join_returns_the_outcome_of_a_run_that_was_stopped():
    handle = await stoppable.spawn(stoppable.sleep, 30)
    waiter = asyncio.create_task(handle.join())
    await until(lambda: handle.run.started_at)
    await handle.stop()
    assert (await waiter).status == "stopped"


async def test_a_cancel_of_ours_is_not_passed_on_as_somebody_elses():
    inner = []

    async def body():
        with stoppable.detached():
            inner.append(await stoppable.spawn(asyncio.sleep, 30))
        await inner[0].join()

    handle = await stoppable.spawn(body)
    await until(lambda: inner)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert not inner[0].run.token.stopped
    await inner[0].stop("immediate")
    await inner[0].outcome()


def test_a_blocking_join_passes_ctrl_c_on():
    handle = sync.spawn(stoppable.sleep, 30)
    main = threading.main_thread()
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main.ident, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            handle.join()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert handle.outcome().reason.kind == "shutdown"
    assert sync.spawn(os.getpid).join().result == os.getpid()


async def test_a_stream_until_the_body_ends_before_the_run_does():
    proceed = threading.Event()

    async def agent():
        asyncio.create_task(stoppable.to_thread(proceed.wait, 30))  # keeps the run stopping
        await asyncio.sleep(0)
        yield 1
        stoppable.current_run().stop("cooperative")
        yield 2

    handle = await stoppable.spawn(agent)
    assert [item async for item in handle.stream(until="body")] == [1, 2]
    assert handle.run.outcome is None
    proceed.set()
    assert (await handle.outcome()).status == "stopped"


def test_also_for_blocking_code():
    proceed = threading.Event()

    def agent():
        threading.Thread(target=stoppable.bind(proceed.wait), args=(30,)).start()
        yield 1
        stoppable.current_run().stop("cooperative")
        yield 2

    handle = sync.spawn(agent)
    assert list(handle.stream(until="body")) == [1, 2]
    proceed.set()
    assert handle.outcome().status == "stopped"


async def test_in_a_process_too(importable):
    agents = importable("counting", "def count():\n    yield 1\n    yield 2\n")
    handle = await stoppable.spawn(agents.count, isolation="process")
    assert [item async for item in handle.stream(until="body")] == [1, 2]
    assert (await handle.outcome()).status == "completed"


async def test_an_unknown_end_of_a_stream_is_refused():
    async def agent():
        yield 1

    handle = await stoppable.spawn(agent)
    with pytest.raises(InvalidArgument, match="use end or body"):
        _ = [item async for item in handle.stream(until="never")]
    await handle.outcome()


async def test_a_run_that_is_elsewhere_cannot_be_joined():
    async def answer():
        return 42

    async with Supervisor() as supervisor:
        handle = await supervisor.start(answer)
        assert (await handle.join()).result == 42
        with pytest.raises(InvalidArgument, match="use outcome"):
            await supervisor.handle(handle.id).join()
    with sync.Supervisor() as supervisor:
        held = supervisor.start(answer)
        assert held.join().result == 42
        with pytest.raises(InvalidArgument, match="use outcome"):
            supervisor.handle(held.id).join()


async def test_every_handle_has_the_receipt():
    async def waits():
        await stoppable.sleep(30)

    async with Supervisor() as supervisor:
        for handle in (await stoppable.spawn(waits), await supervisor.start(waits)):
            assert await handle.receipt() is None
            await until(lambda: handle.run.started_at)  # noqa: B023
            await handle.stop(reason="enough")
            await handle.outcome()
            receipt = await handle.receipt()
            assert (receipt.final, receipt.reason.message) == (True, "enough")
        stored = supervisor.handle(handle.id)
        assert await stored.receipt() == receipt == (await stored.record()).receipt
        never = await supervisor.start(asyncio.sleep, 0)
        await never.outcome()
        assert await supervisor.handle(never.id).receipt() is None


def test_handles_of_blocking_code_have_it_too():
    def waits():
        sync.sleep(30)

    with sync.Supervisor() as supervisor:
        for handle in (sync.spawn(waits), supervisor.start(waits)):
            assert handle.receipt() is None
            handle.stop(reason="enough")
            handle.outcome()
            receipt = handle.receipt()
            assert (receipt.final, receipt.reason.message) == (True, "enough")
        assert supervisor.handle(handle.id).receipt() == receipt


async def test_a_stop_waits_for_the_end_if_it_is_asked_to():
    async with Supervisor() as supervisor:
        for start in (stoppable.spawn, supervisor.start):
            handle = await start(stoppable.sleep, 3600)
            receipt = await handle.stop(wait=30)
            assert (receipt.final, receipt.status) == (True, "stopped")
            assert (await handle.stop(wait=30)).final, "a run that is over is not waited for"
        handle = await supervisor.start(stoppable.sleep, 3600)
        assert (await supervisor.handle(handle.id).stop(wait=30)).status == "stopped"


async def test_a_stop_waits_no_longer_than_it_is_asked_to():
    released = asyncio.Event()

    async def stubborn():
        with stoppable.shielded(3600):
            await released.wait()

    handle = await stoppable.spawn(stubborn)
    await until(lambda: handle.run.started_at)
    receipt = await handle.stop(wait=0.05)
    assert (receipt.final, receipt.status) == (False, "stopping")
    released.set()
    assert (await handle.stop(wait=30)).final


def test_a_stop_of_blocking_code_waits_too():
    released = threading.Event()

    def stubborn():
        released.wait()

    handle = sync.spawn(stubborn)
    assert not handle.stop(wait=0.05).final
    released.set()
    assert handle.stop(wait=30).final
    with sync.Supervisor() as supervisor:
        assert supervisor.start(stoppable.sleep, 3600).stop(wait=30).status == "stopped"


async def test_a_time_to_wait_that_makes_no_sense_is_refused():
    handle = await stoppable.spawn(stoppable.sleep, 3600)
    with pytest.raises(InvalidArgument):
        await handle.stop(wait=-1)
    assert not handle.run.token.stopped
    await handle.stop(wait=30)

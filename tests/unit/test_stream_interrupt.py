"""INTERRUPT ends a stream whose next chunk does not come, with one cancel in all; a shield holds it off."""

import asyncio
import contextlib
import socket
import threading
import types

import pytest

import stoppable
from stoppable._engine.streams import stream

from .stream_sources import DEADLINE, Async, Blocking, Either, each, generator, settled


async def test_a_task_that_waits_in_vain_is_interrupted_and_both_clean_ups_run_to_their_end(clock):
    source = Async(stuck_after=2)
    cleaned, seen = [], []

    async def chunks():
        try:
            async for chunk in source:
                yield chunk
        finally:
            await settled()
            cleaned.append("source")

    async def agent():
        try:
            async for chunk in stream(chunks()):
                stoppable.append_partial(chunk)
        except BaseException as error:
            seen.append((type(error), error.__context__))
            raise
        finally:
            await settled()
            cleaned.append("agent")

    handle = await stoppable.spawn(agent)
    await settled()
    await handle.stop()
    clock.advance(9.9)
    await settled()
    assert cleaned == []
    clock.advance(0.1)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "interrupt", True)
    assert (outcome.partial, cleaned) == ([1, 2], ["source", "agent"])
    assert seen == [(stoppable.AgentStopped, None)]
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "llm"] == ["interrupted"]


@pytest.mark.parametrize("turns_between", [0, 1, 5, 15])
async def test_an_immediate_stop_sends_one_cancel_in_all(clock, turns_between):
    """INTERRUPT and CANCEL are due at once; the clean-up that the first sets off is not hit by the second."""
    source, cleaned = Async(stuck_after=1), []

    async def child():
        try:
            async for _ in stream(generator(source)):
                pass
        finally:
            await settled(4)
            cleaned.append("child")

    async def agent():
        try:
            await stoppable.call(child)
        finally:
            await settled(20)
            cleaned.append("agent")

    handle = await stoppable.spawn(agent)
    await settled()
    await handle.stop(grace=0)  # INTERRUPT
    await settled(turns_between)
    await handle.stop("immediate")  # CANCEL
    outcome = await handle.outcome()
    assert (outcome.status, cleaned, source.closed) == ("stopped", ["child", "agent"], 1)


async def test_on_the_real_clock_an_immediate_stop_leaves_both_clean_ups_alone():
    for _ in range(20):
        source, cleaned = Async(stuck_after=1), []

        async def agent(source=source, cleaned=cleaned):
            try:
                async for _ in stream(generator(source)):
                    pass
            finally:
                await asyncio.sleep(0.002)
                cleaned.append("agent")

        handle = await stoppable.spawn(agent)
        await settled()
        await handle.stop("immediate")
        outcome = await handle.outcome()
        assert (outcome.status, outcome.clean, cleaned, source.closed) == ("stopped", True, ["agent"], 1)


async def test_a_thread_that_waits_in_vain_is_interrupted_by_closing_the_source():
    source = Blocking(stuck_after=2)

    def agent():
        for chunk in stream(source):
            stoppable.append_partial(chunk)

    handle = await stoppable.spawn(agent)
    while not source.waits.is_set():
        await asyncio.sleep(0.001)
    await handle.stop(grace=0)
    async with asyncio.timeout(DEADLINE):
        outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.partial) == ("stopped", "interrupt", [1, 2])
    assert (outcome.error, outcome.clean) == (None, True)
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "llm"] == ["interrupted"]


async def test_the_end_of_a_source_that_interrupt_closed_is_not_taken_for_a_regular_one():
    class EndsWhenClosed(Blocking):
        def __next__(self):
            try:
                return super().__next__()
            except ConnectionError:
                raise StopIteration from None

    source = EndsWhenClosed(stuck_after=1)

    def agent():
        return list(stream(source))

    handle = await stoppable.spawn(agent)
    while not source.waits.is_set():
        await asyncio.sleep(0.001)
    await handle.stop(grace=0)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result) == ("stopped", None)


class OverHttp:
    """A stream as the openai client has it, over an httpx response whose next bytes do not come."""

    def __init__(self, http_version=b"HTTP/1.1", is_closed=False, has_socket=True):
        self.near, self.far = socket.socketpair()
        self.waits = threading.Event()
        self.closed = 0
        network_stream = types.SimpleNamespace(get_extra_info={"socket": self.near if has_socket else None}.get)
        self.response = types.SimpleNamespace(
            extensions={"http_version": http_version, "network_stream": network_stream}, is_closed=is_closed
        )

    def __iter__(self):
        return self

    def __next__(self):
        self.waits.set()
        received = self.near.recv(1)
        if not received:
            raise ConnectionError("the connection was shut down")
        return received

    def close(self):
        self.closed += 1
        self.near.close()
        self.far.close()


async def test_a_thread_that_waits_for_bytes_is_woken_by_shutting_the_connection_down():
    """Closing the socket would leave it asleep in recv()."""
    source = OverHttp()

    def agent():
        return list(stream(source))

    handle = await stoppable.spawn(agent)
    while not source.waits.is_set():
        await asyncio.sleep(0.001)
    await handle.stop(grace=0)
    async with asyncio.timeout(DEADLINE):
        outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.error) == ("stopped", "interrupt", None)
    assert source.closed == 1, "by the thread that read it, not by the hook"


@pytest.mark.parametrize("options", [{"http_version": b"HTTP/2"}, {"is_closed": True}, {"has_socket": False}])
async def test_a_connection_that_others_may_use_is_not_shut_down(options, clock):
    source = OverHttp(**options)
    source.close = lambda: None

    async def agent():
        chunks = stream(source)
        source.far.send(b"12")
        assert next(chunks) == b"1"
        stoppable.current_run().stop()
        clock.advance(10)
        assert source.near.recv(1) == b"2"
        source.near.send(b"3")

    assert (await (await stoppable.spawn(agent)).outcome()).error is None
    OverHttp.close(source)


@pytest.mark.parametrize("make", [Blocking, Async, Either])
async def test_interrupt_closes_a_stream_whose_reader_is_busy_elsewhere(make, clock):
    source, closed = make(), []

    async def agent():
        chunks = stream(source)
        await anext(each(chunks))
        await asyncio.sleep(0)
        stoppable.current_run().stop()
        clock.advance(10)
        await settled()
        closed.append(source.closed)
        with stoppable.shielded(5):
            await anext(each(chunks))

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, closed, source.given) == ("stopped", [1], 1)


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_interrupt_leaves_a_generator_to_the_code_that_reads_it(make, clock):
    source, closed = make(), []

    async def agent():
        chunks = stream(generator(source))
        await anext(each(chunks))
        stoppable.current_run().stop()
        clock.advance(10)
        await settled()
        closed.append(source.closed)
        await anext(each(chunks))

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, closed, source.closed) == ("stopped", [0], 1)


async def test_somebody_elses_cancel_is_not_taken_for_an_interrupt():
    source, seen = Async(stuck_after=1), []

    async def agent():
        try:
            async for _ in stream(source):
                pass
        except BaseException as error:
            seen.append(type(error))
            raise

    task = asyncio.create_task(stoppable.call(_in_run, agent))
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [asyncio.CancelledError]


async def _in_run(agent):
    async with stoppable.open_run("work"):
        await agent()


async def test_somebody_elses_cancel_wins_over_an_interrupt_at_the_same_moment(clock):
    source, runs = Async(stuck_after=1), []

    async def body():
        async with stoppable.open_run("work") as run:
            runs.append(run)
            async for _ in stream(source):
                pass

    task = asyncio.create_task(body())
    await settled()
    runs[0].stop()
    clock.advance(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1
    clock.advance(10)
    assert runs[0].status == "stopped"


async def test_an_interrupt_that_the_source_swallows_leaves_no_cancel_behind(clock):
    counts = []

    async def chunks():
        for number in range(10):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            yield number

    async def body():
        received = []
        try:
            async with stoppable.open_run("work") as run:
                asyncio.get_running_loop().call_soon(run.stop)
                asyncio.get_running_loop().call_soon(clock.advance, 10)
                async for chunk in stream(chunks()):
                    received.append(chunk)
                    counts.append(asyncio.current_task().cancelling())
        except stoppable.RunStopped:
            counts.append(asyncio.current_task().cancelling())
            await asyncio.sleep(0)
        return received

    assert await body() == [0]
    assert counts == [0, 0]


async def test_an_interrupt_inside_a_run_that_the_source_executes_is_paid_back_once(clock):
    async def answer():
        await asyncio.sleep(60)

    async def chunks():
        yield 1
        yield await stoppable.call(answer)

    async def body():
        task = asyncio.current_task()
        task.cancel()  # somebody's, from before: it is not ours to take back
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        with pytest.raises(stoppable.RunStopped):
            async with stoppable.open_run("work") as run:
                async for _ in stream(chunks()):
                    asyncio.get_running_loop().call_soon(run.stop)
                    asyncio.get_running_loop().call_soon(clock.advance, 10)
        await asyncio.sleep(0)
        return task.cancelling()

    assert await asyncio.create_task(body()) == 1


# Shields


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_in_a_shield_a_stream_begins_and_goes_on_after_the_stop_and_the_receipt_says_so(make, clock):
    source = make(limit=3)

    async def agent():
        stoppable.current_run().stop()
        with stoppable.shielded(30):
            received = []
            async for chunk in each(stream(source)):
                received.append(chunk)
                clock.advance(5)
                await asyncio.sleep(0)
            return received

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).result == [1, 2, 3]
    assert handle.run.receipt.entered_after == ("llm:stream",)
    assert source.closed == 0


async def test_interrupt_does_not_cut_a_wait_in_a_shield(clock):
    source = Async(stuck_after=1)

    async def agent():
        chunks = stream(source)
        await anext(chunks)
        with stoppable.shielded(30), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(chunks)
        return source.closed

    handle = await stoppable.spawn(agent)
    while not source.waits.is_set():
        await asyncio.sleep(0)
    await handle.stop()
    clock.advance(10.5)
    await settled()
    assert (await handle.outcome()).result == 0


async def test_interrupt_does_not_cut_a_shield_inside_the_source(clock):
    waits, arrives = asyncio.Event(), asyncio.Event()
    cleaned = []

    async def chunks():
        with stoppable.shielded(30):
            waits.set()
            await arrives.wait()
        yield "saved"

    async def agent():
        try:
            async for chunk in stream(chunks()):
                stoppable.append_partial(chunk)
        finally:
            await settled()
            cleaned.append("agent")

    handle = await stoppable.spawn(agent)
    await waits.wait()
    await handle.stop()
    clock.advance(10.5)
    await settled()
    arrives.set()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.partial) == ("stopped", "interrupt", "saved")
    assert cleaned == ["agent"]

"""A streamed call stops between chunks: what has arrived is kept and the stream is closed cleanly."""

import asyncio
import contextlib
import gc
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable._core.boundary import Boundary
from stoppable._core.node import Sink
from stoppable._engine.streams import stream

from .stream_sources import SOURCES, Async, Blocking, Either, each, generator, settled

# Between chunks


@pytest.mark.parametrize("make", SOURCES)
async def test_a_stop_lands_between_two_chunks_and_the_source_is_closed_before_it_is_raised(make):
    source, received, closed = make(), [], []

    async def agent():
        try:
            async for chunk in each(stream(source)):
                received.append(chunk)
                if chunk == 3:
                    stoppable.current_run().stop()
        finally:
            closed.append(source.closed)

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "signal", True)
    assert (received, closed, source.given) == ([1, 2, 3], [1], 3)


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_a_generator_is_closed_between_two_chunks(make):
    source = make()

    async def agent():
        async for chunk in each(stream(generator(source))):
            if chunk == 2:
                stoppable.current_run().stop()

    assert (await (await stoppable.spawn(agent)).outcome()).status == "stopped"
    assert (source.given, source.closed) == (2, 1)


async def test_a_chunk_that_arrives_after_the_stop_is_kept_and_the_next_one_is_not_asked_for():
    asked, arrives = asyncio.Event(), asyncio.Event()
    received = []

    async def chunks():
        for number in range(10):
            asked.set()
            await arrives.wait()
            yield number

    async def agent():
        async for chunk in stream(chunks()):
            received.append(chunk)
            stoppable.append_partial(chunk)

    handle = await stoppable.spawn(agent)
    await asked.wait()
    receipt = await handle.stop()
    await settled()
    assert (receipt.in_flight, received) == (("llm:stream",), [])
    arrives.set()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, received) == ("stopped", [0], [0])
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "llm"] == ["closed"]


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_every_further_step_raises(make):
    source, raised = make(), []

    async def agent():
        chunks = stream(source)
        stoppable.current_run().stop()
        for _ in range(3):
            with contextlib.suppress(stoppable.AgentStopped):
                await anext(each(chunks))
            raised.append(source.given)

    await (await stoppable.spawn(agent)).outcome()
    assert (raised, source.closed) == ([0, 0, 0], 1)


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_a_stream_that_ended_before_the_stop_is_no_longer_in_flight(make):
    source = make(limit=2)

    async def agent():
        chunks = stream(source)
        received = [chunk async for chunk in each(chunks)]
        return received, stoppable.current_run().stop("cooperative").in_flight

    assert await (await stoppable.spawn(agent)).result() == ([1, 2], ())
    assert source.closed == 0, "a stream that came to its end has closed itself"


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_closing_that_fails_is_an_error_while_stopping(make):
    source = make()
    source.close = lambda: 1 / 0

    async def agent():
        async for _ in each(stream(source)):
            stoppable.current_run().stop()

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, type(outcome.error), outcome.clean) == ("stopped", ZeroDivisionError, False)


# To its end


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_finish_lets_a_stream_that_has_begun_run_to_its_end(make):
    source = make(limit=5)

    async def agent():
        received = []
        async for chunk in each(stream(source, finish=True)):
            received.append(chunk)
            if chunk == 2:
                stoppable.current_run().stop()
        return received

    handle = await stoppable.spawn(agent)
    assert await handle.result() == [1, 2, 3, 4, 5]
    assert handle.run.receipt.too_late
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "llm"] == ["finished"]


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_finish_does_not_let_a_stream_begin_after_the_stop(make):
    source = make()

    async def agent():
        stoppable.current_run().stop()
        async for _ in each(stream(source, finish=True)):
            pass

    assert (await (await stoppable.spawn(agent)).outcome()).status == "stopped"
    assert (source.given, source.closed) == (0, 1)


@pytest.mark.parametrize("wrap", [lambda source: source, generator], ids=["object", "generator"])
@pytest.mark.parametrize("make", [Blocking, Async])
async def test_interrupt_ends_a_stream_that_was_to_finish(make, wrap, clock):
    source = make()

    async def agent():
        async for chunk in each(stream(wrap(source), finish=True)):
            if chunk == 2:
                stoppable.current_run().stop()
            if chunk == 4:
                clock.advance(10)
            await asyncio.sleep(0)

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "interrupt")
    assert source.given == 4


# Leaving it early


@pytest.mark.parametrize("in_run", [True, False])
@pytest.mark.parametrize("make", [Async, Either])
async def test_breaking_out_of_an_async_stream_closes_its_source(make, in_run):
    source = make()

    async def consumer():
        async for chunk in stream(source):
            if chunk == 2:
                break
        await settled()
        return source.closed

    assert await (stoppable.call(_in_run, consumer) if in_run else consumer()) == 1
    assert source.given == 2


@pytest.mark.parametrize("in_run", [True, False])
@pytest.mark.parametrize("make", [Blocking, Either])
async def test_breaking_out_of_a_blocking_stream_closes_its_source(make, in_run):
    source = make()

    async def consumer():
        for chunk in stream(source):
            if chunk == 2:
                break
        return source.closed

    assert await (stoppable.call(_in_run, consumer) if in_run else consumer()) == 1


async def _in_run(function):
    async with stoppable.open_run("work"):
        return await function()


@pytest.mark.parametrize("steps", [0, 1])
async def test_closing_closes_the_source_once_also_if_nothing_was_read(steps):
    blocking, asynchronous = Blocking(), Async()
    async with contextlib.aclosing(stream(asynchronous)) as chunks:
        for _ in range(steps):
            await anext(chunks)
    with contextlib.closing(stream(blocking)) as chunks:
        for _ in range(steps):
            next(chunks)
    with stream(blocking := Blocking()) as chunks:
        pass
    async with stream(asynchronous2 := Async()) as chunks:
        pass
    assert (blocking.closed, asynchronous.closed, asynchronous2.closed) == (1, 1, 1)


async def test_what_is_left_behind_is_closed_by_a_task_that_belongs_to_no_run():
    class Source(Async):
        async def close(self):
            closed_in.append(stoppable.current_run())

    closed_in = []

    async def agent():
        async for _ in stream(Source()):
            break
        await settled()

    await stoppable.call(_in_run, agent)
    assert closed_in == [None]


async def test_a_stream_that_nobody_began_to_read_is_closed_when_it_is_dropped():
    blocking, asynchronous = Blocking(), Async()
    stream(blocking)
    stream(asynchronous)
    gc.collect()
    await settled()
    assert (blocking.closed, asynchronous.closed) == (1, 1)


def test_dropping_an_async_stream_whose_loop_is_closed_harms_nobody():
    source = Async()
    kept = []

    async def consumer():
        chunks = stream(source)
        kept.append(chunks)
        await anext(chunks)

    asyncio.run(consumer())
    kept.clear()
    gc.collect()
    stream(source)
    assert source.closed == 0


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_a_stream_that_was_left_open_holds_up_nobodys_end(make):
    """Kept in a variable, it lives as long as the traceback of the stop that ended the run."""
    source = make()

    async def agent():
        chunks = stream(source)
        async for _ in each(chunks):
            stoppable.current_run().stop()
            stoppable.check()

    handle = await stoppable.spawn(agent)
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "stopped"


async def test_a_stream_that_other_code_is_closing_is_closed_when_the_run_ends():
    """Closing takes a while, and the run does not wait for a thread that is not its own."""
    closing, release, opened = threading.Event(), threading.Event(), []

    class Slow(Blocking):
        def close(self):
            closing.set()
            assert release.wait(30)
            super().close()

    async def agent():
        opened.append(stream(Slow()))
        next(opened[0])
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: opened and handle.run.in_flight)
    closer = threading.Thread(target=opened[0].close)
    closer.start()
    assert await asyncio.to_thread(closing.wait, 30)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    release.set()
    await asyncio.to_thread(closer.join)
    fates = [(entry.kind, str(entry.fate)) for entry in handle.run.receipt.entries if entry.kind == "llm"]
    assert (outcome.status, fates) == ("stopped", [("llm", "closed")])


# What the run knows of it


@pytest.mark.parametrize("make", [Blocking, Async])
async def test_a_stream_is_in_flight_from_its_first_step_to_its_end(make):
    seen = []

    async def agent():
        run = stoppable.current_run()
        chunks = stream(make(limit=2))
        seen.append(_in_flight(run))
        async for _ in each(chunks):
            seen.append(_in_flight(run))
        seen.append(_in_flight(run))

    await stoppable.call(_in_run, agent)
    assert seen == [[], ["llm:stream"], ["llm:stream"], []]


@pytest.mark.parametrize("make", [Blocking, Async, Either])
async def test_a_stream_is_listed_by_its_kind_and_name(make):
    listed = []

    async def agent():
        async for _ in each(stream(make(), kind="tool", name="tail")):
            listed.append(_in_flight(stoppable.current_run()))
            break

    await (await stoppable.spawn(agent)).outcome()
    assert listed == [["tool:tail"]]


def _in_flight(run):
    return [member.label for member in run.members or () if isinstance(member, Boundary)]


async def test_whoever_records_the_run_is_told_when_a_stream_begins_and_ends():
    told = []

    class LogWriter(Sink):
        def entered(self, run, boundary):
            told.append(f"entered {boundary.label}")

        def left(self, run, boundary):
            told.append(f"left {boundary.label}")

    async with stoppable.open_run("work") as run:
        run.sink = LogWriter()
        async for _ in stream(Async(limit=2)):
            told.append("chunk")
    assert told == ["entered llm:stream", "chunk", "chunk", "left llm:stream"]


async def test_a_stream_inside_the_boundary_of_its_call_is_not_listed_twice():
    async def agent():
        run = stoppable.current_run()
        with stoppable.boundary("llm", "chat"):
            async for _ in stream(Async(limit=1)):
                assert _in_flight(run) == ["llm:chat"]
        with stoppable.boundary("tool", "search"):
            async for _ in stream(Async(limit=1)):
                assert _in_flight(run) == ["tool:search", "llm:stream"]

    await stoppable.call(_in_run, agent)


async def test_a_stream_counts_against_no_limit():
    """The call that made it has."""
    async with stoppable.open_run("work", limits=stoppable.Limits(boundaries={"llm": 1})):
        with stoppable.boundary("llm", "chat"):
            source = Async(limit=1)
        assert [chunk async for chunk in stream(source)] == [1]


async def test_a_run_is_not_stopped_while_a_thread_waits_for_a_chunk():
    source = Blocking(stuck_after=1)

    async def agent():
        await asyncio.gather(asyncio.to_thread(list, stream(source)), _check_when(source.waits))

    handle = await stoppable.spawn(agent)
    while not source.waits.is_set():
        await asyncio.sleep(0.001)
    await handle.stop("cooperative")
    while handle.run.body_end is None:
        await asyncio.sleep(0.001)
    await settled()
    assert handle.status == "stopping"
    source.close()
    assert (await handle.outcome()).status == "stopped"


async def test_a_run_that_waits_for_a_threads_last_chunk_ends_with_it():
    class Source(Blocking):
        def __next__(self):
            self.waits.set()
            assert self._wake.wait(60), "nobody gave it a chunk"
            return "chunk"

    source, chunks = Source(), []

    async def agent():
        chunks.append(stream(source))
        await asyncio.gather(asyncio.to_thread(next, chunks[0]), _check_when(source.waits))

    handle = await stoppable.spawn(agent)
    while not source.waits.is_set():
        await asyncio.sleep(0.001)
    await handle.stop("cooperative")
    while handle.run.body_end is None:
        await asyncio.sleep(0.001)
    assert handle.status == "stopping"
    source._wake.set()
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "stopped"
    chunks.clear()


async def _check_when(event):
    while not event.is_set() or not stoppable.current_run().token.stopped:
        await asyncio.sleep(0.001)
    stoppable.check()


async def test_a_stream_belongs_to_the_run_that_reads_it():
    """Begun by the parent and handed to a child, it stops with the child alone."""
    source = Async()

    async def child(chunks):
        async for chunk in chunks:
            if chunk == 3:
                assert stoppable.current_run().stop("cooperative").in_flight == ("llm:stream",)

    async with stoppable.open_run("parent") as parent:
        chunks = stream(source)
        assert await anext(chunks) == 1
        with pytest.raises(stoppable.RunStopped):
            await stoppable.call(child, chunks)
        assert _in_flight(parent) == []
    assert (source.given, source.closed) == (3, 1)


# What passes through


@pytest.mark.parametrize("in_run", [True, False])
@pytest.mark.parametrize("make", [Blocking, Async])
async def test_chunks_and_errors_pass_and_a_source_may_go_on_after_an_error(make, in_run):
    source = make(limit=3)

    async def consumer():
        chunks = stream(source)
        received = [await anext(each(chunks))]
        source.closed = 1
        with pytest.raises(ConnectionError):
            await anext(each(chunks))
        source.closed = 0
        return received + [chunk async for chunk in each(chunks)]

    assert await (stoppable.call(_in_run, consumer) if in_run else consumer()) == [1, 2, 3]


async def test_a_stop_between_the_check_and_the_gate_lets_nothing_in(monkeypatch):
    """The stream is published in the gate first and reads the stop afterwards, as every boundary does (G1)."""
    source = Async()

    async def agent():
        chunks = stream(source)
        enter = chunks._enter

        def stopped_meanwhile(scope, run):
            run.stop("cooperative")
            return enter(scope, run)

        monkeypatch.setattr(type(chunks), "_enter", lambda self, scope, run: stopped_meanwhile(scope, run))
        await anext(chunks)

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert (source.given, source.closed) == (0, 1)


async def test_a_finished_stream_stays_finished_and_is_not_listed_again():
    async def agent():
        chunks = stream(Async(limit=1))
        assert [chunk async for chunk in chunks] == [1]
        assert [chunk async for chunk in chunks] == []
        return _in_flight(stoppable.current_run())

    assert await stoppable.call(_in_run, agent) == []


def test_plain_iterables_are_streams_too():
    assert list(stream([1, 2])) == [1, 2]
    chunks = stream(iter("ab"))
    assert iter(chunks) is chunks


def test_a_stream_of_a_stream_is_the_same_stream():
    chunks = stream([1, 2])
    assert stream(chunks, finish=True) is chunks


async def test_what_is_no_stream_is_refused_with_a_hint():
    coroutine = asyncio.sleep(0)
    with pytest.raises(stoppable.InvalidArgument, match="await it first"):
        stream(coroutine)
    coroutine.close()
    with pytest.raises(stoppable.InvalidArgument, match="sync or async"):
        stream(3)


async def test_nobody_outside_a_run_sees_an_agent_stopped(clock):
    source = Async()
    kept = []
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("work") as run:
            kept.append(stream(source))
            await anext(kept[0])
            run.stop()
            clock.advance(10)
            await settled()
            stoppable.check()
    with pytest.raises(stoppable.StoppableError, match="was stopped"):
        await anext(kept[0])

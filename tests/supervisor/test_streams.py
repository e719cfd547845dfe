"""A generator that is a run, as the body of a streaming response is: its reader, its stop, and a reader that leaves."""

import asyncio
import contextlib

import pytest

import stoppable
from stoppable import RunStopped, StoppableError, sync
from stoppable.supervisor import Supervisor

ALSO = r"supervisor\.start\(…\)\)\.stream\(\)"


async def tokens():
    for number in range(1_000_000):
        yield number
        await stoppable.sleep(0.001)


def blocking_tokens():
    for number in range(1_000_000):
        yield number
        sync.sleep(0.001)


async def test_open_run_in_a_generator_that_is_read_is_refused_as_that_of_the_core_is(store):
    async with Supervisor(store) as supervisor:

        async def chat():
            async with supervisor.open_run("chat", run_id="refused"):
                yield "token"

        async def chat_of_the_core():
            async with stoppable.open_run("chat"):
                yield "token"

        errors = []
        for generator in (chat(), chat_of_the_core()):
            with pytest.raises(StoppableError, match=ALSO) as caught:
                async for _ in generator:
                    pass
            errors.append(str(caught.value).replace("chat_of_the_core", "chat"))
        assert errors[0] == errors[1]
        assert stoppable.current_run() is None
        assert (await supervisor.list()).runs == ()


def test_open_run_in_a_blocking_generator_is_refused_too(store):
    with sync.Supervisor(store) as supervisor:

        def chat():
            with supervisor.open_run("chat"):
                yield "token"

        with pytest.raises(StoppableError, match=ALSO):
            next(chat())
        assert supervisor.list().runs == ()


async def test_open_run_in_a_context_manager_is_a_block_like_any_other(store):
    async with Supervisor(store) as supervisor:

        @contextlib.asynccontextmanager
        async def chat():
            async with supervisor.open_run("chat") as run:
                yield run

        async with chat() as run:
            assert stoppable.current_run() is run
        async with contextlib.AsyncExitStack() as stack:
            run = await stack.enter_async_context(supervisor.open_run("chat"))
            assert stoppable.current_run() is run


async def test_its_reader_is_not_in_the_run_and_learns_of_the_stop(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(tokens)
        seen = []
        with pytest.raises(RunStopped):
            async for token in handle.stream():
                assert stoppable.current_run() is None
                seen.append(token)
                if token == 3:
                    await handle.stop(reason="enough")
        assert seen[:4] == [0, 1, 2, 3]


@pytest.mark.parametrize("leaves", ["break", "cancel"])
async def test_a_reader_that_leaves_stops_the_run_if_that_was_asked_for(store, leaves):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(tokens, on_disconnect="stop")
        kept = await supervisor.start(tokens)
        began = asyncio.Event()

        async def read(one):
            async with contextlib.aclosing(one.stream()) as items:
                async for _ in items:
                    began.set()
                    if leaves == "break":
                        return

        for one in (handle, kept):
            began.clear()
            reader = asyncio.create_task(read(one))
            await began.wait()
            if leaves == "cancel":
                reader.cancel()
            await asyncio.wait([reader])
        outcome = await handle.outcome()
        assert (outcome.status, outcome.reason.kind, outcome.reason.message) == (
            "stopped",
            "disconnect",
            "its reader left",
        )
        assert (await supervisor.get(handle.id)).stop.reason.kind == "disconnect"
        assert kept.status == "running"
        await kept.stop("immediate")


async def test_a_stream_that_is_read_to_its_end_is_no_reader_that_leaves(store):
    async def three():
        for number in range(3):
            yield number

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(three, on_disconnect="stop")
        assert [item async for item in handle.stream()] == [0, 1, 2]
        assert (await handle.outcome()).status == "completed"
        assert await handle.receipt() is None


def test_a_blocking_reader_that_leaves_stops_the_run_too(store):
    with sync.Supervisor(store) as supervisor:
        handle = supervisor.start(blocking_tokens, on_disconnect="stop")
        with contextlib.closing(handle.stream()) as items:
            assert next(items) == 0
        outcome = handle.outcome()
        assert (outcome.status, outcome.reason.kind) == ("stopped", "disconnect")


async def test_the_stream_of_a_run_that_was_stopped_before_it_began_ends_as_its_result_does(store):
    async with Supervisor(store) as supervisor:
        await supervisor.stop("early", if_unknown="wait", reason="typo")
        handle = await supervisor.start(tokens, run_id="early")
        with pytest.raises(RunStopped):
            async for _ in handle.stream():
                raise AssertionError("it never began")
        assert [item async for item in handle.stream(until="body")] == []


def test_the_blocking_stream_of_a_run_that_was_stopped_before_it_began_does_so_too(store):
    with sync.Supervisor(store) as supervisor:
        supervisor.stop("early", if_unknown="wait", reason="typo")
        handle = supervisor.start(blocking_tokens, run_id="early")
        with pytest.raises(RunStopped):
            list(handle.stream())
        assert list(handle.stream(until="body")) == []

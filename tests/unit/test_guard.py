"""guard() makes an object's methods boundaries, in place, and leaves everything else as it was."""

import asyncio
import contextlib
import gc
import inspect

import pytest

import stoppable
from stoppable._engine.guard import guard
from stoppable._engine.streams import stream

from .guarded import METHODS, AsyncStore, Client, Store, in_flight, in_run
from .stream_sources import Async, Blocking, Either, each, settled

# Calls


def test_after_a_stop_no_method_of_a_guarded_store_is_entered():
    store = guard(Store(), "store", *METHODS)
    store.set("before", 1)
    refused = []
    with pytest.raises(stoppable.RunStopped), stoppable.open_run("work") as run:
        store.set("in", 2)
        run.stop("cooperative")
        for call in (lambda: store.get("in"), lambda: store.set("late", 3), lambda: store.delete("in"), store.list):
            with contextlib.suppress(stoppable.AgentStopped):
                call()
                refused.append(call)
    assert refused == []
    assert store.data == {"before": 1, "in": 2}


async def test_a_call_in_flight_finishes_and_its_answer_is_kept():
    store = guard(AsyncStore(), "store", "get", "set")
    store.data["key"] = "value"
    store.hold.clear()

    async def agent():
        stoppable.set_partial(await store.get("key"))
        await store.set("key", "changed")

    handle = await stoppable.spawn(agent)
    await store.entered.wait()
    receipt = await handle.stop()
    store.hold.set()
    outcome = await handle.outcome()
    assert (receipt.in_flight, outcome.status, outcome.partial) == (("store:get",), "stopped", "value")
    assert store.data == {"key": "value"}
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "store"] == ["finished"]


async def test_a_coroutine_that_a_plain_method_returns_is_in_flight_while_it_is_awaited():
    client = guard(Client(), "llm", "chat.completions.create")
    seen = []

    async def agent():
        coroutine = client.chat.completions.create()
        seen.append(in_flight())
        task = asyncio.ensure_future(coroutine)
        await asyncio.sleep(0)
        seen.append(in_flight())
        return await task, in_flight()

    assert await in_run(agent) == ("answer", [])
    assert seen == [[], ["llm:chat.completions.create"]]


async def test_a_coroutine_that_is_awaited_after_the_stop_does_nothing():
    client = guard(Client(), "llm", "chat.completions.create")

    async def agent():
        coroutine = client.chat.completions.create()
        stoppable.current_run().stop()
        await coroutine

    assert (await (await stoppable.spawn(agent)).outcome()).status == "stopped"


async def test_a_call_counts_once_against_a_limit():
    client = guard(Client(Async(limit=1)), "llm", "chat.completions.create")
    async with stoppable.open_run("work", limits=stoppable.Limits(boundaries={"llm": 2})):
        assert await client.chat.completions.create() == "answer"
        assert [chunk async for chunk in await client.chat.completions.create(stream=True)] == [1]


async def test_errors_pass_and_leave_nothing_in_flight():
    store, async_store = guard(Store(), "store", "delete"), guard(AsyncStore(), "store", "get")

    async def agent():
        with pytest.raises(KeyError):
            store.delete("missing")
        with pytest.raises(TypeError):
            await async_store.get()
        return in_flight()

    assert await in_run(agent) == []


# Streams


@pytest.mark.parametrize(("make", "path"), [(Async, "create"), (Blocking, "create_blocking"), (Either, "create")])
async def test_a_stream_that_a_guarded_call_returns_stops_between_chunks_and_is_closed(make, path):
    source, received = make(), []
    client = guard(Client(source), "llm", f"chat.completions.{path}")

    async def agent():
        chunks = getattr(client.chat.completions, path)(stream=True)
        chunks = await chunks if inspect.isawaitable(chunks) else chunks
        async for chunk in each(chunks):
            received.append(chunk)
            if chunk == 2:
                stoppable.current_run().stop()

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert handle.run.receipt.in_flight == ()  # its consumer had the chunk in hand
    assert (received, source.given, source.closed) == ([1, 2], 2, 1)
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "llm"] == ["closed"]


async def test_a_stream_for_both_kinds_of_code_can_be_read_by_either():
    client = guard(Client(Either(limit=2)), "llm", "chat.completions.create_blocking")

    async def agent():
        return list(client.chat.completions.create_blocking(stream=True))

    assert await in_run(agent) == [1, 2]


async def test_a_guarded_stream_is_what_the_method_returned_in_everything_but_its_iteration():
    source = Async()
    client = guard(Client(source), "llm", "chat.completions.create")

    async def agent():
        async with await client.chat.completions.create(stream=True) as chunks:
            assert isinstance(chunks, Async)
            assert (chunks.given, repr(chunks)) == (0, repr(source))
            assert not hasattr(chunks, "missing")
            assert await anext(chunks) == 1
        assert in_flight() == []
        return source.closed

    assert await in_run(agent) == 1


@pytest.mark.parametrize("make", [Async, Blocking])
async def test_the_streams_own_close_keeps_its_kind_and_ends_it(make):
    source = make()
    client = guard(Client(source), "llm", "chat.completions.create_blocking")

    async def agent():
        chunks = client.chat.completions.create_blocking(stream=True)
        closing = chunks.close()
        if inspect.isawaitable(closing):
            await closing
        assert [chunk async for chunk in each(chunks)] == []
        return in_flight(), source.closed

    assert await in_run(agent) == ([], 1)


async def test_a_guarded_stream_can_be_told_to_finish():
    source = Async(limit=4)
    client = guard(Client(source), "llm", "chat.completions.create")

    async def agent():
        chunks = await client.chat.completions.create(stream=True)
        stoppable.current_run().stop()  # between the call and the first chunk
        return [chunk async for chunk in stream(chunks, finish=True)]

    handle = await stoppable.spawn(agent)
    assert await handle.result() == [1, 2, 3, 4]
    assert [node.name for node in handle.run.receipt.entries if node.kind == "llm"] == ["chat.completions.create"]


async def test_a_guarded_stream_that_nobody_reads_leaves_nothing_in_flight():
    source = Async()
    client = guard(Client(source), "llm", "chat.completions.create")

    async def agent():
        await client.chat.completions.create(stream=True)
        gc.collect()
        await settled()
        return in_flight(), source.closed

    assert await in_run(agent) == ([], 1)


async def test_generators_are_streams_and_stop_between_items():
    store, async_store = guard(Store(), "store", "list"), guard(AsyncStore(), "store", "list")
    store.data = async_store.data = dict.fromkeys("abc")

    async def agent():
        return list(store.list()), [key async for key in async_store.list()]

    assert await in_run(agent) == (["a", "b", "c"], ["a", "b", "c"])
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("work") as run:
            async for _ in async_store.list():
                run.stop("cooperative")


async def test_what_only_looks_like_a_stream_is_handed_out_as_it_is(tmp_path):
    class Files:
        def read(self, path):
            return path.open()

        def keys(self, *, stream):
            return ["a"]

    (tmp_path / "file").write_text("line\n")
    files = guard(Files(), "tool", "read", "keys")

    async def agent():
        with files.read(tmp_path / "file") as file:
            assert (type(file).__name__, in_flight(), file.read()) == ("TextIOWrapper", [], "line\n")
        return files.keys(stream=True)

    assert await in_run(agent) == ["a"]


async def test_an_iterator_that_a_model_call_returns_is_a_stream_without_being_asked_for_one():
    class Model:
        def generate(self):
            return source

    source = Blocking()
    model = guard(Model(), "llm", "generate")
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("work") as run:
            for _ in model.generate():
                run.stop("cooperative")
    assert source.closed == 1


async def test_one_guarded_method_that_calls_another_hands_its_stream_on():
    class Wrapper:
        def __init__(self, client):
            self.client = client

        async def ask(self):
            return await self.client.chat.completions.create(stream=True)

    wrapper = Wrapper(guard(Client(Async(limit=1)), "llm", "chat.completions.create"))
    guard(wrapper, "llm", "ask")

    async def agent():
        async for _ in await wrapper.ask():
            return in_flight()

    assert await in_run(agent) == ["llm:chat.completions.create"]

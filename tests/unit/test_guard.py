"""guard() makes an object's methods boundaries, in place, and leaves everything else as it was."""

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import types

import pytest

import stoppable
from stoppable._core.boundary import Boundary
from stoppable._engine.guard import guard
from stoppable._engine.streaming.stream import stream

from .stream_sources import Async, Blocking, Either, each, settled


class Store:
    """A data store, as an agent's tools have one."""

    def __init__(self):
        self.data = {}
        self.is_open = True

    def get(self, key, default=None):
        return self.data.get(key, default)

    def set(self, key, value):
        self.data[key] = value

    def delete(self, key):
        del self.data[key]

    def list(self):
        yield from sorted(self.data)


class AsyncStore:
    def __init__(self):
        self.data = {}
        self.hold = asyncio.Event()
        self.hold.set()
        self.entered = asyncio.Event()

    async def get(self, key):
        self.entered.set()
        await self.hold.wait()
        return self.data.get(key)

    async def set(self, key, value):
        self.data[key] = value

    async def list(self):
        for key in sorted(self.data):
            yield key


class Completions:
    """As in a client library: a plain function that returns a coroutine, which may give a stream."""

    def __init__(self, source):
        self._source = source

    def create(self, *, stream=False, prompt=""):
        return self._create(stream)

    async def _create(self, is_streamed):
        await asyncio.sleep(0)
        return self._source if is_streamed else "answer"

    def create_blocking(self, *, stream=False):
        return self._source if stream else "answer"


class Client:
    def __init__(self, source=None):
        self._source = source

    @functools.cached_property
    def chat(self):
        return types.SimpleNamespace(completions=Completions(self._source))

    @property
    def anew(self):
        return Completions(self._source)


def in_flight():
    return [m.label for m in stoppable.current_run()._members if isinstance(m, Boundary)]


async def in_run(function, *args):
    async with stoppable.open_run("work"):
        return await function(*args)


METHODS = ("get", "set", "delete", "list")


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
    assert [node.fate for node in handle.run.receipt.nodes if node.kind == "store"] == ["finished"]


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
    assert [node.fate for node in handle.run.receipt.nodes if node.kind == "llm"] == ["closed"]


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
    assert [node.name for node in handle.run.receipt.nodes if node.kind == "llm"] == ["chat.completions.create"]


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


# The object


def test_guard_returns_the_object_and_guarding_again_changes_nothing():
    store = Store()
    assert guard(store, "store", "get") is store
    once = store.get
    assert guard(store, "store", "get", "set").get is once
    with pytest.raises(stoppable.InvalidArgument, match="'get' is guarded as 'store': it cannot be 'llm' as well"):
        guard(store, "llm", "delete", "get")
    assert "delete" not in vars(store)


def test_only_that_object_is_guarded():
    guard(Store(), "store", "get")
    assert "get" not in vars(Store())
    assert Store.get is Store().get.__func__


def test_a_copy_is_guarded_by_guarding_it():
    store = guard(Store(), "store", "get", "set")
    copied = guard(copy.copy(store), "store", "get", "set")
    copied.data = {}
    copied.set("key", "of the copy")
    assert (copied.get("key"), store.get("key")) == ("of the copy", None)


def test_a_guarded_method_keeps_its_name_its_signature_and_its_kind():
    store, async_store = guard(Store(), "store", "get"), guard(AsyncStore(), "store", "get")
    assert store.get.__name__ == "get"
    assert list(inspect.signature(store.get).parameters) == ["key", "default"]
    assert inspect.iscoroutinefunction(async_store.get)
    assert not inspect.iscoroutinefunction(store.get)


async def test_outside_a_run_everything_is_as_before():
    source = Async()
    client = guard(Client(source), "llm", "chat.completions.create")
    assert await client.chat.completions.create() == "answer"
    assert await client.chat.completions.create(stream=True) is source


def test_an_object_that_refuses_new_attributes_is_guarded_if_it_has_a_dictionary():
    class Frozen:
        def __setattr__(self, name, value):
            raise ValueError("frozen")

        def get(self):
            return "value"

    assert guard(Frozen(), "store", "get").get() == "value"


def test_modules_and_callable_attributes_can_be_guarded():
    module = types.ModuleType("provider")
    module.complete = lambda prompt: prompt.upper()
    assert guard(module, "llm", "complete").complete("a") == "A"


class Slotted:
    __slots__ = ()

    def get(self):
        """Never replaced."""


class Odd:
    @classmethod
    def made(cls):
        """Made of the class."""


@pytest.mark.parametrize(
    ("obj", "methods", "message"),
    [
        (Store(), ["fetch"], "Store has no 'fetch': Store has delete, get, list, set"),
        (
            Client(),
            ["chat.completion.create"],
            "Client has no 'chat.completion.create': SimpleNamespace has completions",
        ),
        (Store(), [], "name the methods to guard after the kind: Store has delete, get, list, set"),
        (Store(), ["is_open"], "'is_open' is bool, not a method"),
        (Store, ["fetch"], "Store has no 'fetch': Store has delete, get, list, set"),
        (Odd, ["made"], "'made' of Odd is not an ordinary method: decorate it with @boundary"),
        (Slotted(), ["get"], "'get' of Slotted cannot be replaced: use `with boundary"),
        (Client(), ["anew.create"], "'anew.create' is made anew each time it is asked for: keep 'anew' in a variable"),
    ],
)
def test_what_cannot_be_guarded_is_refused_with_what_can(obj, methods, message):
    with pytest.raises(stoppable.InvalidArgument) as caught:
        guard(obj, "store", *methods)
    assert message in str(caught.value)


def test_nothing_is_guarded_if_one_name_is_wrong():
    store = Store()
    with pytest.raises(stoppable.InvalidArgument):
        guard(store, "store", "get", "fetch")
    assert "get" not in vars(store)


# Classes, and names


class Model:
    def __init__(self, model="small"):
        self.model = model

    async def generate(self):
        return in_flight()

    def ask(self):
        return in_flight()

    async def tokens(self):
        for number in range(3):
            yield (number, in_flight())


@pytest.fixture
def models():
    """Return fresh classes: a guard stays."""
    fresh = type("Model", (), dict(vars(Model)))

    class Special(fresh):
        async def generate(self):
            return await super().generate()

    return fresh, Special


async def test_every_object_of_a_guarded_class_is_guarded_by_a_name_of_its_own(models):
    model, special = models
    assert guard(model, "llm", "generate", "ask", name=lambda self: self.model) is model

    async def agent():
        return await model("large").generate(), model().ask(), await special("odd").generate()

    assert await in_run(agent) == (["llm:large"], ["llm:small"], ["llm:odd"])


async def test_a_class_names_its_boundaries_after_itself_and_takes_a_text(models):
    model, _ = models
    guard(model, "llm", "ask")
    guard(model, "llm", "generate", name="chat")

    async def agent():
        return model().ask(), await model().generate()

    assert await in_run(agent) == (["llm:Model.ask"], ["llm:chat"])


async def test_a_guarded_class_is_guarded_once(models):
    model, special = models
    for _ in range(2):
        guard(model, "llm", "ask")
        guard(special, "llm", "ask")
        guard(special(), "llm", "ask")

    async def agent():
        return special().ask()

    assert await in_run(agent) == ["llm:Model.ask"]
    with pytest.raises(stoppable.InvalidArgument, match="it cannot be 'tool' as well"):
        guard(special, "tool", "ask")


async def test_a_generator_is_in_flight_while_it_is_read_and_not_while_its_consumer_holds_a_chunk(models):
    model, _ = models
    guard(model, "llm", "tokens", name=lambda self: self.model)

    async def agent():
        run = stoppable.current_run()
        return [(token, run.in_flight) async for token in model().tokens()]

    assert await in_run(agent) == [((number, ["llm:small"]), ()) for number in range(3)]


async def test_the_name_of_an_object_may_be_told_by_a_function_too():
    client = guard(Model("mine"), "llm", "ask", name=lambda one: one.model)

    async def agent():
        return client.ask()

    assert await in_run(agent) == ["llm:mine"]
    with pytest.raises(stoppable.InvalidArgument, match="name is 3"):
        guard(client, "llm", "generate", name=3)

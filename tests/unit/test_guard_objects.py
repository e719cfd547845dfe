"""What guard() does to an object or a class, and what it leaves as it was."""

import copy
import inspect
import operator
import types

import pytest

import stoppable
from stoppable._engine.guard import guard

from .guarded import AsyncStore, Client, Store, in_flight, in_run
from .stream_sources import Async

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
        (Client(), ["anew.create"], "'anew.create' is a new object each time it is read: keep 'anew' in a variable"),
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


class Session:
    async def call_tool(self, name, arguments=None):
        return stoppable.current_run().in_flight

    def call(self, name):
        return stoppable.current_run().in_flight


async def test_a_name_that_takes_more_than_the_object_is_told_the_call():
    fresh = type("Session", (Session,), dict(vars(Session)))
    guard(fresh, "tool", "call_tool", "call", name=lambda self, name, *args, **kwargs: f"{name}{args}{kwargs}")
    session = guard(Session(), "tool", "call", name=lambda self, name: f"{type(self).__name__}.{name}")

    async def agent():
        return (
            await fresh().call_tool("search", {"q": 1}),
            await fresh().call_tool("search", arguments={"q": 1}),
            fresh().call("book"),
            session.call("book"),
        )

    assert await in_run(agent) == (
        ("tool:search({'q': 1},){}",),
        ("tool:search(){'arguments': {'q': 1}}",),
        ("tool:book(){}",),
        ("tool:Session.book",),
    )


async def test_a_name_of_one_parameter_or_without_a_signature_is_told_the_object():
    session = guard(Session(), "tool", "call", name=lambda one: type(one).__name__)
    other = guard(Model("mine"), "llm", "ask", name=operator.attrgetter("model"))

    async def agent():
        return session.call("book"), other.ask()

    assert await in_run(agent) == (("tool:Session",), ["llm:mine"])


async def test_the_name_of_an_object_may_be_told_by_a_function_too():
    client = guard(Model("mine"), "llm", "ask", name=lambda one: one.model)

    async def agent():
        return client.ask()

    assert await in_run(agent) == ["llm:mine"]
    with pytest.raises(stoppable.InvalidArgument, match="name is 3"):
        guard(client, "llm", "generate", name=3)

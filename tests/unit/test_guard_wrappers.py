"""guard() of a plain function around a coroutine function: one boundary a call, whichever of the two does the work."""

import asyncio
import functools

import pytest

import stoppable
from stoppable._engine.guard import guard
from stoppable.records import EventType


def checked(function):
    """Check arguments before the coroutine is made, as the openai client does."""

    @functools.wraps(function)
    def call(self, *args):
        if not args:
            raise TypeError("a question is missing")
        return function(self, *args)

    return call


def waited_for(function):
    """Make a coroutine function one that waits."""

    @functools.wraps(function)
    def call(self, *args):
        return asyncio.run(function(self, *args))

    return call


class Model:
    """A model in both worlds."""

    def __init__(self):
        self.asked = []

    @checked
    async def ask(self, question):
        """Answer."""
        self.asked.append((question, stoppable.current_run() and stoppable.current_run().in_flight))
        return question.upper()

    @waited_for
    async def ask_and_wait(self, question):
        """Answer."""
        self.asked.append((question, None))
        return question.upper()

    @waited_for
    async def fail(self, question):
        """Raise."""
        raise ValueError(question)


@pytest.fixture
def model():
    return guard(Model(), "llm", "ask", "ask_and_wait", "fail")


async def reported(agent):
    """Run an agent, and return its outcome and what its log has of boundaries."""
    async with stoppable.Supervisor() as supervisor:
        handle = await supervisor.start(agent)
        outcome = await handle.outcome()
        events = [event async for event in supervisor.events(handle.id)]
    told = [(e.type, e.data["name"]) for e in events if e.type in {EventType.ENTERED, EventType.LEFT}]
    return outcome, told


def once(name):
    return [(EventType.ENTERED, name), (EventType.LEFT, name)]


async def test_a_coroutine_is_reported_when_it_is_awaited(model):
    async def agent():
        coroutine = model.ask("why")
        assert stoppable.current_run().in_flight == ()
        return await coroutine

    outcome, told = await reported(agent)
    assert (outcome.result, told) == ("WHY", once("ask"))
    assert model.asked == [("why", ("llm:ask",))]


async def test_one_that_waits_by_itself_is_reported_once(model):
    outcome, told = await reported(lambda: model.ask_and_wait("why"))
    assert (outcome.result, told) == ("WHY", once("ask_and_wait"))


async def test_an_error_is_reported_once(model):
    def agent():
        with pytest.raises(ValueError, match="why"):
            model.fail("why")
        with pytest.raises(TypeError):
            model.ask()

    outcome, told = await reported(agent)
    assert (outcome.status, told) == ("completed", once("fail") + once("ask"))


async def test_it_counts_once_against_a_limit(model):
    async with stoppable.open_run("work", limits=stoppable.Limits(boundaries={"llm": 2})) as run:
        await model.ask("one")
        await asyncio.to_thread(stoppable.bind(model.ask_and_wait), "two")
    assert run.status == "completed"


async def test_after_the_stop_nothing_is_called(model):
    async def agent():
        coroutine = model.ask("made before the stop")
        stoppable.current_run().stop("cooperative")
        with pytest.raises(stoppable.AgentStopped):
            model.ask_and_wait("refused")
        with pytest.raises(stoppable.AgentStopped):
            model.ask("refused")
        await coroutine

    outcome, told = await reported(agent)
    assert (outcome.status, told, model.asked) == ("stopped", [], [])


async def test_outside_a_run_it_is_as_before(model):
    assert await model.ask("why") == "WHY"
    assert await asyncio.to_thread(model.ask_and_wait, "why") == "WHY"
    with pytest.raises(TypeError):
        model.ask()

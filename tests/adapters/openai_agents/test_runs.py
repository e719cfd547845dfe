"""What the scenarios of all frameworks do not have: handoffs, guardrails, hooks, sessions and models of the user."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    RunHooks,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    handoff,
    input_guardrail,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from tests.adapters.scenarios.history import answers_in, is_valid, texts_of
from tests.adapters.scenarios.suite import ended, partial_of

import stoppable
from stoppable.adapters import openai_agents
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT
from stoppable.testing import ModelServer, Pause, Reply, ToolCall

set_tracing_disabled(True)


@pytest.fixture(autouse=True)
def _installed():
    openai_agents.install()


class Place:
    """Where a tool is held."""

    def __init__(self):
        self.reached, self.pause = asyncio.Event(), Pause()

    async def wait(self):
        self.reached.set()
        await self.pause.wait()


@contextlib.asynccontextmanager
async def model_for(*script):
    with ModelServer(*script, default=Reply("Fine.")) as server:
        async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            yield OpenAIChatCompletionsModel("gpt-5-mini", client), server


def held_tool(place):
    @function_tool
    async def book() -> str:
        """Book a trip."""
        await place.wait()
        return "booked"

    return book


def asks(*names, text=""):
    return Reply(text, tool_calls=[ToolCall(name=name, id=f"call-{name}") for name in names])


async def run_again(agent, session, server):
    result = await Runner.run(agent, "Still there?", session=session)
    messages = server.requests[-1].messages
    assert is_valid(messages)
    return result, messages


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_agent_that_was_handed_the_turn_stops_and_the_session_has_the_handoff(mode, is_streamed):
    place, session = Place(), SQLiteSession("ann")
    async with model_for(asks("transfer_to_booker"), asks("book")) as (model, server):
        booker = Agent(name="booker", model=model, tools=[held_tool(place)])
        front = Agent(name="front", model=model, handoffs=[handoff(booker)])

        async def streamed():
            async for _ in Runner.run_streamed(front, "Book.", session=session).stream_events():
                pass

        agent = streamed if is_streamed else lambda: Runner.run(front, "Book.", session=session)
        handle = await stoppable.spawn(agent if is_streamed else as_async(agent))
        await place.reached.wait()
        receipt = await handle.stop(mode)
        assert "tool:book" in receipt.in_flight
        if mode == "graceful":
            place.pause.end()
        assert (await ended(handle)).status == "stopped"
        assert len(server.requests) == 2
        _, messages = await run_again(booker, session, server)
        answers = answers_in(messages)
        assert json.loads(answers["transfer_to_booker"]) == {"assistant": "booker"}
        assert answers["book"] == ("booked" if mode == "graceful" else MAY_HAVE_TAKEN_EFFECT)


def as_async(function):
    async def agent():
        return await function()

    return agent


async def test_a_guardrail_that_asks_a_model_stops_with_the_run():
    pause, session = Pause(), SQLiteSession("ann")
    async with model_for(Reply("It is fine.", pause=pause), Reply("Yes.", pause=pause)) as (model, server):
        judge = Agent(name="judge", model=model)

        @input_guardrail
        async def polite(context, agent, text):
            await Runner.run(judge, text)
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

        agent = Agent(name="front", model=model, input_guardrails=[polite])
        handle = await stoppable.spawn(Runner.run, agent, "Book.", session=session)
        await server.wait_for_request_async(2)
        await handle.stop("immediate")
        assert (await ended(handle)).status == "stopped"
        await server.wait_for_closed_async(2)
        plain = Agent(name="front", model=model)
        _, messages = await run_again(plain, session, server)
        assert texts_of(messages, "user")[-1] == "Still there?"


async def test_the_hooks_of_the_user_are_called_as_without_the_adapter():
    class Noting(RunHooks):
        def __init__(self):
            self.calls = []

    def note(name):
        async def hook(self, *args, **kwargs):
            self.calls.append(name)

        return hook

    for name in [name for name in dir(RunHooks) if name.startswith("on_")]:
        setattr(Noting, name, note(name))

    @function_tool
    async def look_up() -> str:
        """Look up a price."""
        return "cheap"

    async def calls_of(run):
        hooks = Noting()
        async with model_for(asks("look_up")) as (model, _):
            agent = Agent(name="front", model=model, tools=[look_up])
            await run(agent, hooks)
        return hooks.calls

    async def plain(agent, hooks):
        await Runner.run(agent, "Book.", hooks=hooks)

    async def in_run(agent, hooks):
        handle = await stoppable.spawn(Runner.run, agent, "Book.", hooks=hooks)
        assert (await handle.result()).final_output == "Fine."

    calls = await calls_of(plain)
    assert "on_tool_end" in calls
    assert await calls_of(in_run) == calls


class ListSession:
    """A session as users write their own."""

    session_settings = None

    def __init__(self):
        self.session_id, self.items = "ann", []
        self.is_broken = False

    async def get_items(self, limit=None):
        if self.is_broken:
            raise OSError("the disk is gone")
        return list(self.items)

    async def add_items(self, items):
        self.items += items

    async def pop_item(self):
        return self.items.pop()

    async def clear_session(self):
        self.items.clear()


class OwnModel(Model):
    """A model class that does not exist when the adapter is installed."""

    def __init__(self, place):
        self.place, self.inputs = place, []

    async def get_response(self, system_instructions, input, *args, **kwargs):  # noqa: A002
        self.inputs.append(input)
        if len(self.inputs) == 1:
            output = ResponseFunctionToolCall(type="function_call", name="book", arguments="{}", call_id="call-1")
        else:
            await self.place.wait()
            text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
            output = ResponseOutputMessage(id="1", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def test_a_model_and_a_session_of_the_user_take_part_and_what_is_saved_is_not_written_twice():
    place, session = Place(), ListSession()

    @function_tool
    async def book() -> str:
        """Book a trip."""
        return "booked"

    agent = Agent(name="front", model=OwnModel(place), tools=[book])
    handle = await stoppable.spawn(Runner.run, agent, "Book.", session=session)
    await place.reached.wait()
    receipt = await handle.stop("immediate")
    assert "llm:OwnModel" in receipt.in_flight
    assert (await ended(handle)).status == "stopped"
    kinds = [item.get("type") or item["role"] for item in session.items]
    assert kinds == ["user", "function_call", "function_call_output"]
    assert session.items[-1]["output"] == "booked"


async def test_a_session_that_cannot_be_written_is_logged_and_the_run_is_stopped(caplog):
    place, session = Place(), ListSession()
    async with model_for(asks("book")) as (model, _):
        agent = Agent(name="front", model=model, tools=[held_tool(place)])
        handle = await stoppable.spawn(Runner.run, agent, "Book.", session=session)
        await place.reached.wait()
        session.is_broken = True
        await handle.stop("immediate")
        outcome = await ended(handle)
    assert (outcome.status, outcome.error) == ("stopped", None)
    assert "the disk is gone" in caplog.text


async def test_a_run_without_a_session_and_one_outside_stop_and_work_as_before():
    place = Place()
    async with model_for(asks("book"), Reply("Hello.")) as (model, _):
        agent = Agent(name="front", model=model, tools=[held_tool(place)])
        handle = await stoppable.spawn(Runner.run, agent, "Book.")
        await place.reached.wait()
        await handle.stop("immediate")
        assert (await ended(handle)).status == "stopped"
        assert (await Runner.run(agent, "Hello?")).final_output == "Hello."


async def test_two_conversations_at_once_do_not_mix():
    places, sessions = [Place(), Place()], [SQLiteSession("ann"), SQLiteSession("bob")]
    async with model_for(asks("book"), asks("book")) as (model, _):
        agents = [Agent(name="front", model=model, tools=[held_tool(place)]) for place in places]
        ann, bob = [
            await stoppable.spawn(Runner.run, agent, "Book.", session=session)
            for agent, session in zip(agents, sessions, strict=True)
        ]
        for place in places:
            await place.reached.wait()
        await ann.stop("immediate")
        assert (await ended(ann)).status == "stopped"
        places[1].pause.end()
        assert (await ended(bob)).status == "completed"
        outputs = [
            [item["output"] for item in await session.get_items() if item.get("type") == "function_call_output"]
            for session in sessions
        ]
        assert outputs == [[MAY_HAVE_TAKEN_EFFECT], ["booked"]]


async def test_the_text_of_a_streamed_turn_is_the_partial_once():
    async with model_for(Reply("one two three")) as (model, _):
        agent = Agent(name="front", model=model)

        async def streamed():
            async for _ in Runner.run_streamed(agent, "Count.").stream_events():
                pass

        handle = await stoppable.spawn(streamed)
        await ended(handle)
        assert partial_of(handle) == "one two three"


async def test_an_agent_is_a_child_run_of_its_name():
    place = Place()
    async with model_for(asks("book")) as (model, _):
        agent = Agent(name="front", model=model, tools=[held_tool(place)])
        handle = await stoppable.spawn(Runner.run, agent, "Book.")
        await place.reached.wait()
        await handle.stop("immediate")
        await ended(handle)
        entries = [(entry.kind, entry.name, entry.fate) for entry in handle.run.receipt.entries]
        assert ("run", "front", "stopped") in entries

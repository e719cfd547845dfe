"""What a stop leaves in the model context of an agent."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import AssistantMessage, ModelInfo
from autogen_core.tools import StaticWorkbench
from autogen_ext.models.replay import ReplayChatCompletionClient
from tests.adapters.scenarios.history import answers_in, is_valid, shape, texts_of
from tests.waiting import until

import stoppable
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT, NOT_KNOWN
from stoppable.testing import Pause, Reply, ToolCall

from .world import DEADLINE, Booking, World, ask, asking, go_on, stop_in

pytestmark = pytest.mark.filterwarnings("ignore")  # of AutoGen


async def cut(task):
    """Cancel a task, as code does that knows nothing of runs."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_calls_that_a_cancel_outside_a_run_has_left_open_are_answered_in_the_next_turn():
    booking = Booking()
    async with World() as world:
        agent = world.agent("booker", asking("book", city="Rome"), tools=[booking.book])
        task = asyncio.create_task(ask(agent, "A trip, please."))
        await booking.began.wait()
        await cut(task)
        booking.release.set()
        await go_on(agent)
        messages = world.messages("booker")
        assert is_valid(messages)
        assert answers_in(messages) == {"book": NOT_KNOWN}


async def test_what_became_of_calls_that_a_foreign_cancel_has_cut_is_known_in_the_next_turn():
    booking = Booking()
    calls = [ToolCall(name="look_up", id="1"), ToolCall(name="book", arguments='{"city": "Rome"}', id="2")]

    async def look_up() -> str:
        """Look up a price."""
        return "cheap"

    async def in_a_run(agent):
        async with stoppable.open_run("chat"):
            await ask(agent, "A trip, please.")

    async with World() as world:
        agent = world.agent("booker", Reply(tool_calls=calls), tools=[look_up, booking.book])
        async with asyncio.timeout(DEADLINE):
            task = asyncio.create_task(in_a_run(agent))
            await booking.began.wait()
            await cut(task)
            await go_on(agent)
        assert answers_in(world.messages("booker")) == {"look_up": "cheap", "book": MAY_HAVE_TAKEN_EFFECT}


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_tools_of_any_workbench_are_boundaries(mode):
    class Workbench(StaticWorkbench):
        """One whose tools are called in one piece, as those of MCP."""

    booking = Booking()
    async with World() as world:
        plain = world.agent("plain", tools=[booking.book])
        agent = world.agent("booker", asking("book", city="Rome"), workbench=Workbench(plain._workbench[0]._tools))
        _, receipt = await stop_in(agent, booking.began, mode, booking.release)
        assert receipt.in_flight == ("tool:book",)
        await go_on(agent)
        expected = "booked Rome" if mode == "graceful" else MAY_HAVE_TAKEN_EFFECT
        assert answers_in(world.messages("booker")) == {"book": expected}


async def test_a_context_that_keeps_only_the_last_messages_is_completed():
    booking = Booking()
    async with World() as world:
        context = BufferedChatCompletionContext(buffer_size=5)
        agent = world.agent("booker", asking("book", city="Rome"), tools=[booking.book], model_context=context)
        await stop_in(agent, booking.began, "immediate")
        await go_on(agent)
        assert shape(world.messages("booker")) == "u A[1] t u"


async def test_clean_up_of_a_tool_is_not_cut_by_the_end_of_its_agent():
    began, cleaned, go = asyncio.Event(), [], asyncio.Event()

    async def book() -> str:
        """Book a trip."""
        try:
            began.set()
            await asyncio.sleep(DEADLINE)
        finally:
            cleaned.append("begun")
            await go.wait()
            cleaned.append("ended")
        return "booked"

    async with World() as world:
        agent = world.agent("booker", asking("book"), tools=[book])
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(ask, agent, "A trip, please.")
            await began.wait()
            await handle.stop("immediate")
            await until(lambda: cleaned == ["begun"])
            for _ in range(200):  # turns of the loop in which something could cut it
                await asyncio.sleep(0)
            assert handle.run.outcome is None
            go.set()
            outcome = await handle.outcome()
        assert (outcome.status, cleaned) == ("stopped", ["begun", "ended"])


async def test_what_a_tool_returns_that_was_cut_is_kept():
    began = asyncio.Event()

    async def book() -> str:
        """Book a trip."""
        began.set()
        try:
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            return "taken back"
        return "booked"

    async with World() as world:
        agent = world.agent("booker", asking("book"), tools=[book])
        await stop_in(agent, began, "immediate")
        await go_on(agent)
        assert answers_in(world.messages("booker")) == {"book": "taken back"}


async def test_text_of_an_agent_that_is_a_tool_is_no_partial_and_stays_in_its_own_context():
    pause = Pause()
    async with World() as world:
        helper = world.agent("helper", Reply("one two three", pause=pause), model_client_stream=True)
        agent = world.agent("desk", asking("helper", task="Count."), tools=[AgentTool(helper)])
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(ask, agent, "Count, please.")
            pause.release(2)
            await until(lambda: any("two" in text for text in said_by(helper)))
            await handle.stop("immediate")
            assert (await handle.outcome()).partial is None
            pause.release()
        assert (await helper.model_context.get_messages())[-1].content.startswith("one")
        await go_on(agent)
        assert answers_in(world.messages("desk")) == {"helper": MAY_HAVE_TAKEN_EFFECT}
        assert texts_of(world.messages("desk"), "assistant") == [""]


def said_by(agent):
    """Return what an agent in its turn has said so far."""
    from stoppable.adapters.autogen.turns import _last_turns

    turn = _last_turns.get(agent)
    return [] if turn is None else [turn.text]


async def test_thoughts_are_not_kept_as_what_the_model_has_said():
    info = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
    spoken = asyncio.Event()

    class Client(ReplayChatCompletionClient):
        async def create_stream(self, messages, **options):
            for piece in ("<think>", "hm", "</think>", "Hello, "):
                yield piece
            spoken.set()
            await asyncio.sleep(DEADLINE)

    agent = AssistantAgent("thinker", Client([], model_info=info), model_client_stream=True)
    await stop_in(agent, spoken, "immediate")
    last = (await agent.model_context.get_messages())[-1]
    assert isinstance(last, AssistantMessage)
    assert last.content == "Hello, "


async def test_a_reader_that_leaves_a_stream_closes_its_request():
    pause = Pause()
    async with World() as world:
        agent = world.agent("writer", Reply("one two three", pause=pause), model_client_stream=True)

        async def body():
            async with contextlib.aclosing(agent.run_stream(task="Count.")) as events:
                async for event in events:
                    if getattr(event, "content", "").startswith("one"):
                        return

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(body)
            pause.release(1)
            assert (await handle.outcome()).status == "completed"
            pause.release()
            await world.servers["writer"].wait_for_closed_async()


async def test_outside_a_run_everything_is_as_before():
    booking = Booking()
    booking.release.set()
    async with World() as world, asyncio.timeout(DEADLINE):
        agent = world.agent("booker", asking("book", city="Rome"), tools=[booking.book])
        assert (await ask(agent, "A trip, please.")).messages[-1].content == "Fine."
        assert answers_in(world.messages("booker")) == {"book": "booked Rome"}


async def test_a_tool_that_stops_its_own_run_keeps_its_result():
    async def book() -> str:
        """Book a trip."""
        stoppable.current_run().stop()
        return "booked"

    async with World() as world:
        agent = world.agent("booker", asking("book"), tools=[book])
        async with asyncio.timeout(DEADLINE):
            assert (await (await stoppable.spawn(ask, agent, "A trip.")).outcome()).status == "stopped"
        assert len(world.servers["booker"].requests) == 1
        await go_on(agent)
        assert answers_in(world.messages("booker")) == {"book": "booked"}


async def test_calls_that_the_reader_of_a_stream_never_let_begin_had_no_effect():
    booking = Booking()

    async def body(agent):
        async for event in agent.run_stream(task="A trip, please."):
            if event.type == "ToolCallRequestEvent":
                stoppable.current_run().stop()
                stoppable.check()

    async with World() as world:
        agent = world.agent("booker", asking("book", city="Rome"), tools=[booking.book])
        async with asyncio.timeout(DEADLINE):
            assert (await (await stoppable.spawn(body, agent)).outcome()).status == "stopped"
        await go_on(agent)
        assert answers_in(world.messages("booker")) == {"book": NO_EFFECT}
    assert booking.count == 0

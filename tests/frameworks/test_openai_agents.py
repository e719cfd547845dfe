"""A stop goes through the OpenAI Agents SDK: its runner, its function tools and agents that are tools."""

from __future__ import annotations

import pytest

pytest.importorskip("agents")

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from stoppable import AgentStopped, Fate, Rung, Status

set_tracing_disabled(True)


class ScriptedModel(Model):
    """A model that follows the script of a trip."""

    def __init__(self, trip, tool_calls=1, arguments="{}"):
        self.trip = trip
        self.tool_calls = tool_calls
        self.arguments = arguments

    async def get_response(self, system_instructions, input, *args, **kwargs):  # noqa: A002 - the interface's name
        return ModelResponse(output=await self._output(input), usage=Usage(), response_id=None)

    async def stream_response(self, system_instructions, input, *args, **kwargs):  # noqa: A002 - the interface's name
        response = Response(
            id="response",
            created_at=0,
            model="scripted",
            object="response",
            output=await self._output(input),
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(type="response.completed", sequence_number=0, response=response)

    async def _output(self, prompt):
        if await self.trip.turn_async(prompt):
            ids = [f"{len(self.trip.prompts)}.{index}" for index in range(self.tool_calls)]
            return [
                ResponseFunctionToolCall(type="function_call", name="book", arguments=self.arguments, call_id=id_)
                for id_ in ids
            ]
        text = ResponseOutputText(type="output_text", text="done", annotations=[])
        return [ResponseOutputMessage(id="1", type="message", role="assistant", status="completed", content=[text])]


def async_tool(trip):
    async def book() -> str:
        return await trip.book_async()

    return function_tool(book)


def blocking_tool(trip):
    # The SDK calls it with asyncio.to_thread(), which copies the context.
    def book() -> str:
        return trip.book()

    return function_tool(book)


def assistant(trip, tool=async_tool, tool_calls=1):
    return Agent(name="assistant", model=ScriptedModel(trip, tool_calls), tools=[tool(trip)])


def agent_of(trip, tool=async_tool, tool_calls=1):
    async def agent():
        return await Runner.run(assistant(trip, tool, tool_calls), "book a trip")

    return agent


@pytest.mark.parametrize("tool", [async_tool, blocking_tool])
async def test_the_tool_in_flight_finishes_and_its_next_boundary_ends_the_runner(new_trip, tool):
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_in_flight(agent_of(trip, tool))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_a_streamed_runner_stops_the_same_way(new_trip):
    # It works in a background task and hands events over a queue; the stop comes out of stream_events().
    trip = new_trip("flight", "hotel")

    async def agent():
        return [event async for event in Runner.run_streamed(assistant(trip), "book a trip").stream_events()]

    stopped = await trip.stop_in_flight(agent)
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_an_agent_that_is_the_tool_of_another_stops_with_it(new_trip):
    trip, managers = new_trip("flight", "hotel"), new_trip()
    manager = Agent(
        name="manager",
        model=ScriptedModel(managers, arguments='{"input": "book a trip"}'),
        tools=[assistant(trip).as_tool("book", "Book a trip.")],
    )

    async def agent():
        return await Runner.run(manager, "book a trip")

    stopped = await trip.stop_in_flight(agent)
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects, len(managers.prompts)) == (1, ["flight"], 1)


async def test_the_model_turn_in_flight_finishes_and_the_tool_it_asks_for_has_no_effect(new_trip):
    trip = new_trip("flight", hold="model", model_is_boundary=True)
    stopped = await trip.stop_in_flight(agent_of(trip))
    await stopped.came_through("llm:model")
    assert (trip.calls, trip.effects) == (1, [])


async def test_the_tool_in_flight_finishes_and_the_boundary_of_the_model_ends_the_runner(new_trip):
    trip = new_trip("flight", model_is_boundary=True)
    stopped = await trip.stop_in_flight(agent_of(trip))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_a_parallel_tool_call_that_the_runner_cancels_is_listed_as_cancelled(new_trip):
    # When one call raises, the runner cancels the others (N12): the effect in flight there is cut short, and told.
    trip = new_trip("flight", "hotel")
    handle = await trip.start(agent_of(trip, tool_calls=2))
    await trip.in_flight(2)
    receipt = await handle.stop(reason="stop both")
    assert receipt.in_flight == ("tool:flight", "tool:flight")
    trip.release()  # the first one; the other is held for ever
    outcome = await trip.end(handle)
    assert isinstance(trip.escaped, AgentStopped)
    assert (outcome.status, outcome.rung) == (Status.STOPPED, Rung.SIGNAL)
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "tool"] == [Fate.FINISHED, Fate.CANCELLED]
    assert (len(trip.prompts), trip.calls, trip.effects) == (1, 2, ["flight"])


async def test_an_immediate_stop_cancels_the_tool_in_flight_and_the_model_gets_no_further_turn(new_trip):
    # On its own, the SDK tells the model of a cancelled tool as of a failed one.
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_at_once(agent_of(trip))
    assert (stopped.outcome.status, stopped.outcome.rung) == (Status.STOPPED, Rung.CANCEL)
    assert stopped.fates() == [("tool:flight", Fate.CANCELLED)]
    assert (len(trip.prompts), trip.calls, trip.effects) == (1, 1, [])


async def test_a_stop_that_is_an_exception_is_swallowed_by_the_default_failure_error_function(new_trip):
    trip = new_trip("flight", "hotel", stop_is_exception=True)
    stopped = await trip.stop_in_flight(agent_of(trip))
    stopped.was_swallowed("An error occurred while running the tool")

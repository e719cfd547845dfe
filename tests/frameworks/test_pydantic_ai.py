"""A stop goes through Pydantic AI: its graph, its parallel tools and its retries."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from stoppable import AgentStopped, Fate, Rung, Status


def scripted_model(trip, tool_calls=1):
    """Return a model that follows the script of a trip."""

    def ids():
        return [f"{len(trip.prompts)}.{index}" for index in range(tool_calls)]

    async def respond(messages, info):
        if await trip.turn_async(messages):
            return ModelResponse(parts=[ToolCallPart("book", {}, tool_call_id=id_) for id_ in ids()])
        return ModelResponse(parts=[TextPart("done")])

    async def stream(messages, info):
        if await trip.turn_async(messages):
            yield {index: DeltaToolCall("book", "{}", tool_call_id=id_) for index, id_ in enumerate(ids())}
        else:
            yield "done"

    return FunctionModel(respond, stream_function=stream)


def async_tool(trip):
    return Tool(trip.book_async, name="book", max_retries=3)


def blocking_tool(trip):
    # Pydantic AI calls it on a worker thread of anyio, which copies the context.
    return Tool(trip.book, name="book", max_retries=3)


def assistant(trip, tool=async_tool, tool_calls=1):
    return Agent(scripted_model(trip, tool_calls), tools=[tool(trip)])


def agent_of(trip, tool=async_tool, tool_calls=1):
    async def agent():
        return await assistant(trip, tool, tool_calls).run("book a trip")

    return agent


@pytest.mark.parametrize("tool", [async_tool, blocking_tool])
async def test_the_tool_in_flight_finishes_and_its_next_boundary_ends_the_run(new_trip, tool):
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_in_flight(agent_of(trip, tool))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_a_streamed_run_stops_the_same_way(new_trip):
    trip = new_trip("flight", "hotel")

    async def agent():
        async with assistant(trip).run_stream("book a trip") as stream:
            return [text async for text in stream.stream_text()]

    stopped = await trip.stop_in_flight(agent)
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_the_model_turn_in_flight_finishes_and_the_tool_it_asks_for_has_no_effect(new_trip):
    trip = new_trip("flight", hold="model", model_is_boundary=True)
    stopped = await trip.stop_in_flight(agent_of(trip))
    await stopped.came_through("llm:model")
    assert (trip.calls, trip.effects) == (1, [])


async def test_the_tool_in_flight_finishes_and_the_boundary_of_the_model_ends_the_run(new_trip):
    trip = new_trip("flight", model_is_boundary=True)
    stopped = await trip.stop_in_flight(agent_of(trip))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_a_parallel_tool_call_that_pydantic_ai_cancels_is_listed_as_cancelled(new_trip):
    # When one call raises, Pydantic AI cancels the others (N12): the effect in flight there is cut short, and told.
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
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_at_once(agent_of(trip))
    assert (stopped.outcome.status, stopped.outcome.rung) == (Status.STOPPED, Rung.CANCEL)
    assert stopped.fates() == [("tool:flight", Fate.CANCELLED)]
    assert (len(trip.prompts), trip.calls, trip.effects) == (1, 1, [])


async def test_a_stop_that_is_an_exception_would_come_through_here_too(new_trip):
    # Pydantic AI tells the model of a ModelRetry only: it is no witness for decision 0001, nor against it.
    trip = new_trip("flight", "hotel", stop_is_exception=True)
    stopped = await trip.stop_in_flight(agent_of(trip))
    assert type(trip.escaped).__name__ == "StopAsException"
    assert stopped.outcome.error is trip.escaped
    assert (len(trip.prompts), trip.calls, trip.effects) == (1, 1, ["flight"])

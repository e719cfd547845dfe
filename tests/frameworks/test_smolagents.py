"""A stop goes through smolagents: tool-calling and code agents, in blocking code on a thread of their own."""

from __future__ import annotations

from typing import ClassVar

import pytest

pytest.importorskip("smolagents")

from smolagents import ChatMessage, CodeAgent, LogLevel, MessageRole, Model, Tool, ToolCallingAgent
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction


class ScriptedModel(Model):
    """A model that follows the script of a trip, with tool calls."""

    def __init__(self, trip, tool_calls=1, asks_for=("book", {})):
        super().__init__(model_id="scripted")
        self.trip = trip
        self.tool_calls = tool_calls
        self.asks_for = asks_for

    def generate(self, messages, *args, **kwargs):
        if self.trip.turn(messages):
            return self._message([self.asks_for] * self.tool_calls)
        return self._message([("final_answer", {"answer": "done"})])

    def _message(self, calls):
        tool_calls = [
            ChatMessageToolCall(
                id=str(index), type="function", function=ChatMessageToolCallFunction(name=name, arguments=arguments)
            )
            for index, (name, arguments) in enumerate(calls)
        ]
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=tool_calls)


class ScriptedCoder(ScriptedModel):
    """The same script, in code."""

    def _message(self, calls):
        lines = [f"{name}({', '.join(map(repr, arguments.values()))})" for name, arguments in calls]
        return ChatMessage(role=MessageRole.ASSISTANT, content="\n".join(["<code>", *lines, "</code>"]))


class Book(Tool):
    """Book a trip."""

    name = "book"
    description = "Book a trip."
    inputs: ClassVar = {}
    output_type = "string"

    def __init__(self, trip):
        super().__init__()
        self.trip = trip

    def forward(self):
        return self.trip.book()


def tool_calling_agent(trip, tool_calls=1, **options):
    return ToolCallingAgent(
        tools=[Book(trip)], model=ScriptedModel(trip, tool_calls), verbosity_level=LogLevel.OFF, **options
    )


def code_agent(trip):
    # Its limit of seconds runs the code on a thread without the run's context, where no stop can reach it.
    return CodeAgent(
        tools=[Book(trip)],
        model=ScriptedCoder(trip),
        executor_kwargs={"timeout_seconds": None},
        verbosity_level=LogLevel.OFF,
    )


both_kinds = pytest.mark.parametrize("kind", [tool_calling_agent, code_agent])


def agent_of(assistant):
    return lambda: assistant.run("book a trip")


@both_kinds
async def test_the_tool_in_flight_finishes_and_its_next_boundary_ends_the_agent(new_trip, kind):
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_in_flight(agent_of(kind(trip)))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


@both_kinds
async def test_a_streamed_agent_stops_the_same_way(new_trip, kind):
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_in_flight(lambda: list(kind(trip).run("book a trip", stream=True)))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_an_agent_that_another_one_manages_stops_with_it(new_trip):
    trip, managers = new_trip("flight", "hotel"), new_trip()
    manager = ToolCallingAgent(
        tools=[],
        model=ScriptedModel(managers, asks_for=("agency", {"task": "book a trip"})),
        managed_agents=[tool_calling_agent(trip, name="agency", description="Books trips.")],
        verbosity_level=LogLevel.OFF,
    )
    stopped = await trip.stop_in_flight(agent_of(manager))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects, len(managers.prompts)) == (1, ["flight"], 1)


@both_kinds
async def test_the_model_turn_in_flight_finishes_and_the_tool_it_asks_for_has_no_effect(new_trip, kind):
    trip = new_trip("flight", hold="model", model_is_boundary=True)
    stopped = await trip.stop_in_flight(agent_of(kind(trip)))
    await stopped.came_through("llm:model")
    assert (trip.calls, trip.effects) == (1, [])


@both_kinds
async def test_the_tool_in_flight_finishes_and_the_boundary_of_the_model_ends_the_agent(new_trip, kind):
    trip = new_trip("flight", model_is_boundary=True)
    stopped = await trip.stop_in_flight(agent_of(kind(trip)))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_parallel_tool_calls_in_flight_all_finish(new_trip):
    # smolagents calls them on threads, copies the context to each, and waits for all of them.
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_in_flight(agent_of(tool_calling_agent(trip, tool_calls=2)), 2)
    await stopped.came_through("tool:flight", "tool:flight")
    assert (trip.calls, trip.effects) == (2, ["flight", "flight"])


@both_kinds
async def test_a_stop_that_is_an_exception_is_swallowed_and_the_model_goes_on(new_trip, kind):
    trip = new_trip("flight", "hotel", stop_is_exception=True)
    stopped = await trip.stop_in_flight(agent_of(kind(trip)))
    stopped.was_swallowed("StopAsException")

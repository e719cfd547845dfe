"""A stop goes through LangGraph: its graph, its ToolNode and its retries."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import RetryPolicy

import stoppable
from stoppable import AgentStopped, Fate, Rung, Status

TASK = {"messages": [("user", "book a trip")]}
ATTEMPTS = 3


class ScriptedModel(BaseChatModel):
    """A chat model that follows the script of a trip."""

    trip: Any
    tool_calls: int = 1

    @property
    def _llm_type(self):
        return "scripted"

    def _generate(self, messages, stop=None, run_manager=None, **options):
        return self._result(asks=self.trip.turn(messages))

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        return self._result(asks=await self.trip.turn_async(messages))

    def _result(self, *, asks):
        ids = [f"{len(self.trip.prompts)}.{index}" for index in range(self.tool_calls if asks else 0)]
        message = AIMessage("", tool_calls=[{"name": "book", "args": {}, "id": id_} for id_ in ids])
        return ChatResult(generations=[ChatGeneration(message=message)])


def async_tool(trip):
    return StructuredTool.from_function(coroutine=trip.book_async, name="book", description="Book a trip.")


def blocking_tool(trip):
    # LangGraph calls it on a thread of an executor, and copies the context there.
    return StructuredTool.from_function(trip.book, name="book", description="Book a trip.")


def build(model_node, tool, *, handle_tool_errors=True):
    retry = RetryPolicy(initial_interval=0, jitter=False, max_attempts=ATTEMPTS)  # everywhere: no stop is retried
    graph = StateGraph(MessagesState)
    graph.add_node("model", model_node, retry_policy=retry)
    graph.add_node("tools", ToolNode([tool], handle_tool_errors=handle_tool_errors), retry_policy=retry)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def async_graph(trip, tool=async_tool, *, tool_calls=1, boundary_around_model=False, handle_tool_errors=True):
    model = ScriptedModel(trip=trip, tool_calls=tool_calls)

    async def model_node(state):
        with stoppable.boundary("llm", "model") if boundary_around_model else contextlib.nullcontext():
            return {"messages": [await model.ainvoke(state["messages"])]}

    return build(model_node, tool(trip), handle_tool_errors=handle_tool_errors)


def agent_of(trip, tool=async_tool, **options):
    graph = async_graph(trip, tool, **options)

    async def agent():
        return await graph.ainvoke(TASK)

    return agent


@pytest.mark.parametrize("tool", [async_tool, blocking_tool])
async def test_the_tool_in_flight_finishes_and_its_next_boundary_ends_the_graph(new_trip, tool):
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_in_flight(agent_of(trip, tool))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_a_graph_invoked_by_blocking_code_stops_the_same_way(new_trip):
    trip = new_trip("flight", "hotel")
    model = ScriptedModel(trip=trip)
    graph = build(lambda state: {"messages": [model.invoke(state["messages"])]}, blocking_tool(trip))
    stopped = await trip.stop_in_flight(lambda: graph.invoke(TASK))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_a_streamed_graph_stops_the_same_way(new_trip):
    trip = new_trip("flight", "hotel")
    graph = async_graph(trip)

    async def agent():
        return [update async for update in graph.astream(TASK, stream_mode=["updates", "messages"])]

    stopped = await trip.stop_in_flight(agent)
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_the_model_turn_in_flight_finishes_and_the_tool_it_asks_for_has_no_effect(new_trip):
    trip = new_trip("flight", hold="model")
    stopped = await trip.stop_in_flight(agent_of(trip, boundary_around_model=True))
    await stopped.came_through("llm:model")
    assert (trip.calls, trip.effects) == (0, [])  # turned back by the executor that LangGraph calls it in


async def test_the_tool_in_flight_finishes_and_the_boundary_around_the_model_ends_the_graph(new_trip):
    trip = new_trip("flight")
    stopped = await trip.stop_in_flight(agent_of(trip, boundary_around_model=True))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


async def test_a_boundary_inside_an_async_chat_model_ends_the_graph_whatever_langchain_makes_of_it(new_trip):
    # BaseChatModel.agenerate() collects every BaseException and then asks all results but the Exceptions for their
    # generations: langchain-core 1.7 raises an AttributeError in place of the stop. The run is stopped all the same,
    # with that error attached (G8), but a boundary belongs around the call of the model, as in the test above.
    trip = new_trip("flight", model_is_boundary=True)
    stopped = await trip.stop_in_flight(agent_of(trip))
    assert stopped.receipt.in_flight == ("tool:flight",)
    assert stopped.outcome.status is Status.STOPPED
    assert isinstance(trip.escaped, AgentStopped | AttributeError)
    assert (len(trip.prompts), trip.calls, trip.effects) == (1, 1, ["flight"])


async def test_the_run_is_not_stopped_before_a_parallel_tool_call_has_finished(new_trip):
    # ToolNode gathers its calls: when the first one raises, the others are left to themselves.
    trip = new_trip("flight", "hotel")
    handle = await trip.start(agent_of(trip, tool_calls=2))
    await trip.in_flight(2)
    receipt = await handle.stop(reason="stop both")
    assert receipt.in_flight == ("tool:flight", "tool:flight")
    trip.release()
    await trip.left()
    assert isinstance(trip.escaped, AgentStopped)
    assert handle.status is Status.STOPPING
    trip.release()
    outcome = await trip.end(handle)
    assert (outcome.status, outcome.clean) == (Status.STOPPED, True)
    assert (len(trip.prompts), trip.calls, trip.effects) == (1, 2, ["flight", "flight"])


async def test_an_immediate_stop_cancels_the_tool_in_flight_and_the_model_gets_no_further_turn(new_trip):
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_at_once(agent_of(trip))
    assert (stopped.outcome.status, stopped.outcome.rung) == (Status.STOPPED, Rung.CANCEL)
    assert stopped.fates() == [("tool:flight", Fate.CANCELLED)]
    assert (len(trip.prompts), trip.calls, trip.effects) == (1, 1, [])


class OtherExecutor(ThreadPoolExecutor):
    """An executor of a class that stoppable does not know."""


@pytest.mark.usefixtures("uninstrumented")
async def test_a_stop_that_is_an_exception_is_swallowed_by_a_tool_node_that_handles_errors(new_trip):
    trip = new_trip("flight", "hotel", stop_is_exception=True)
    # Calls in a plain executor take part in the run, which would turn the next tool back by itself.
    asyncio.get_running_loop().set_default_executor(OtherExecutor())
    stopped = await trip.stop_in_flight(agent_of(trip, handle_tool_errors=True))
    stopped.was_swallowed("StopAsException")


async def test_a_stop_that_is_an_exception_is_retried_by_a_node_with_a_retry_policy(new_trip):
    trip = new_trip("flight", "hotel", stop_is_exception=True)
    await trip.stop_in_flight(agent_of(trip, handle_tool_errors=False))
    assert (trip.calls, trip.effects) == (ATTEMPTS, ["flight"])

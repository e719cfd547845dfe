"""Nothing in LangGraph swallows a stop, and one branch that meets it cuts nothing of another."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import RetryPolicy
from typing_extensions import TypedDict

import stoppable
from stoppable import Status
from stoppable.adapters.langgraph import instrument, names, stoppable_graph

from ...waiting import until
from .cases import CONFIG, World, model_node, turn
from .scripted import DEADLINE, Scripted, calls

RETRY = RetryPolicy(initial_interval=0, jitter=False, max_attempts=3, retry_on=Exception)


async def end(handle):
    async with asyncio.timeout(DEADLINE):
        return await handle.outcome()


class State(TypedDict, total=False):
    value: str


async def test_a_tool_node_that_handles_errors_and_retries_swallows_no_stop():
    world = World()
    world.model = Scripted(calls("book"), calls("other"))
    graph = StateGraph(MessagesState)
    graph.add_node("model", model_node(world.model), retry_policy=RETRY)
    tools = [world.tool("book", held=True), world.tool("other")]
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True), retry_policy=RETRY)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    handle = await stoppable.spawn(stoppable_graph(graph.compile()), turn())
    await world.hold.reached()
    await handle.stop()
    world.hold.release()
    assert (await end(handle)).status is Status.STOPPED
    assert (world.effects, len(world.model.seen)) == (["book"], 1)


async def test_a_node_that_fails_after_the_stop_is_not_tried_again():
    world, tries = World(), []

    async def node(state):
        tries.append(1)
        await world.hold.wait_async()
        raise ValueError("broken")

    graph = StateGraph(State)
    graph.add_node("node", node, retry_policy=RETRY)
    graph.add_edge(START, "node")
    handle = await stoppable.spawn(stoppable_graph(graph.compile()), {"value": ""})
    await world.hold.reached()
    await handle.stop()
    world.hold.release()
    outcome = await end(handle)
    assert outcome.status is Status.STOPPED
    assert "broken" in str(outcome.error)
    assert len(tries) == 1


@pytest.mark.skipif(
    "error_handler" not in inspect.signature(StateGraph.add_node).parameters, reason="this langgraph has none"
)
async def test_an_error_handler_swallows_no_stop():
    world, handled = World(), []

    async def node(state):
        await world.hold.wait_async()
        stoppable.check()

    def handler(state):
        handled.append(1)
        return {"value": "handled"}

    graph = StateGraph(State)
    graph.add_node("node", node, error_handler=handler)
    graph.add_edge(START, "node")
    handle = await stoppable.spawn(stoppable_graph(graph.compile()), {"value": ""})
    await world.hold.reached()
    await handle.stop()
    world.hold.release()
    assert (await end(handle)).status is Status.STOPPED
    assert handled == []


async def test_a_branch_that_meets_the_stop_does_not_cut_the_call_of_another():
    world, quick = World(), World()
    book, first, second = world.tool("book", held=True), quick.tool("first", held=True), quick.tool("second")

    async def long(state):
        return {"value": await book.ainvoke({})}

    async def short(state):
        await first.ainvoke({})
        await second.ainvoke({})

    graph = StateGraph(State)
    graph.add_node("long", long)
    graph.add_node("short", short)
    graph.add_edge(START, "long")
    graph.add_edge(START, "short")
    made = stoppable_graph(graph.compile(checkpointer=InMemorySaver()))
    handle = await stoppable.spawn(made, {"value": ""}, CONFIG)
    await world.hold.reached()
    await quick.hold.reached()
    await handle.stop()
    quick.hold.release()  # meets the stop at its second tool, while the other node has a call in flight
    while not quick.effects:
        await asyncio.sleep(0.002)
    world.hold.release()
    assert (await end(handle)).status is Status.STOPPED
    assert (world.effects, quick.effects) == (["book"], ["first"])
    results = {task.name: task.result for task in (await made.aget_state(CONFIG)).tasks}
    assert results["long"] == {"value": "book done"}  # kept for when the graph is resumed


async def test_a_plain_node_is_listed_until_its_thread_has_ended():
    world = World()

    def node(state):
        world.hold.wait()
        world.effects.append("written")

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    handle = await stoppable.spawn(stoppable_graph(graph.compile()), {"value": ""})
    await world.hold.reached()
    receipt = await handle.stop("immediate")
    assert "node:node" in receipt.in_flight
    await until(lambda: handle.run.receipt.delivered_at is not None, DEADLINE)  # else it may end before it hears of it
    assert handle.status is Status.STOPPING
    world.hold.release()
    assert (await end(handle)).status is Status.STOPPED
    assert world.effects == ["written"]


async def test_any_graph_called_in_a_run_is_a_child_run_once_all_are_instrumented():
    instrument()
    world = World()
    world.model = Scripted(calls("book"))
    graph = StateGraph(MessagesState)
    graph.add_node("model", model_node(world.model))
    graph.add_node("tools", ToolNode([world.tool("book", held=True)]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    compiled = graph.compile(name="trip")

    async def agent():
        return await compiled.ainvoke(turn())

    handle = await stoppable.spawn(agent)
    await world.hold.reached()
    receipt = await handle.stop("immediate")
    assert "tool:book" in receipt.in_flight
    assert (await end(handle)).status is Status.STOPPED
    assert "trip" in {node.name for node in (await handle.receipt()).entries if node.kind == "run"}
    world.hold.release()
    assert (await compiled.ainvoke(turn()))["messages"][-1].content == "done"  # outside a run, as before


async def test_a_stop_before_the_graph_has_begun_leaves_the_thread_as_it_was():
    world = World()
    graph = stoppable_graph(
        StateGraph(MessagesState)
        .add_node("model", model_node(world.model))
        .add_edge(START, "model")
        .compile(checkpointer=InMemorySaver())
    )
    handle = await stoppable.spawn(graph, turn(), CONFIG)
    await handle.stop()
    assert (await end(handle)).status is Status.STOPPED
    assert world.model.seen == []
    assert (await graph.ainvoke(turn("again"), CONFIG))["messages"][-1].content == "done"


def test_this_version_has_every_name_that_the_adapter_needs():
    assert names.missing() == []


def test_a_version_that_lacks_a_name_is_refused(monkeypatch):
    monkeypatch.setattr(names, "TASK_ID", None)
    with pytest.raises(RuntimeError, match="CONFIG_KEY_TASK_ID"):
        instrument()

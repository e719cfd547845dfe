"""Graphs as agents: their names, parameters and results."""

from __future__ import annotations

import inspect
import operator

from langchain_core.load.serializable import to_json_not_implemented
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import stoppable
from stoppable import Status
from stoppable.adapters.langgraph import as_agent, stoppable_graph

from . import cases
from .cases import CONFIG, World, turn
from .scripted import Scripted


class State(TypedDict, total=False):
    input: str
    output: str


def parameters(agent):
    return list(inspect.signature(agent).parameters)


async def test_the_keys_of_the_input_are_the_parameters_of_the_agent():
    graph = StateGraph(State).add_node("n", lambda state: {"output": state["input"] * 2})
    agent = as_agent(graph.add_edge(START, "n").compile(name="twice"))
    assert (agent.__name__, parameters(agent)) == ("twice", ["input", "output"])  # no thread: nothing is kept
    assert (await (await stoppable.spawn(agent, "ab")).result()) == {"input": "ab", "output": "abab"}


async def test_the_input_of_an_entrypoint_is_one_parameter():
    world = World()
    world.hold.release()
    agent = as_agent(cases.functional(world, InMemorySaver()), "flow")
    assert (agent.__name__, parameters(agent)) == ("flow", ["input", "thread_id"])
    result = await agent({"messages": [("user", "hello")]}, thread_id="1")
    assert [one["content"] for one in result["messages"]] == ["hello"]


async def test_messages_are_told_as_plain_json():
    world = World()
    agent = as_agent(cases.agent_graph(Scripted(), [world.tool("book")], checkpointer=InMemorySaver()))
    result = await agent("hello", thread_id="1")
    assert [(one["type"], one["content"]) for one in result["messages"]] == [("human", "hello"), ("ai", "done")]


async def test_the_policy_of_a_graph_is_that_of_its_runs_however_they_are_started():
    policy = stoppable.Policy(grace=77)
    graph = stoppable_graph(cases.async_tool(World(), InMemorySaver()), policy=policy)
    for agent, args in ((graph, (turn(), CONFIG)), (as_agent(graph), (turn()["messages"],))):
        handle = await stoppable.spawn(agent, *args)
        assert handle.run.policy.grace == policy.grace
        await handle.stop("immediate")
        assert (await handle.outcome()).status == "stopped"


async def test_a_graph_that_is_stoppable_is_an_agent_of_its_own_name():
    graph = stoppable_graph(cases.async_tool(World(), InMemorySaver()), name="trip")
    async with stoppable.Supervisor() as supervisor:
        handle = await supervisor.start(graph, turn(), CONFIG)
        record = await handle.record()
        assert record.name == "trip"
        await handle.stop("immediate")
        assert (await handle.outcome()).status is Status.STOPPED


def test_a_stoppable_graph_is_drawn_and_serialized_like_the_plain_one():
    plain = StateGraph(State).add_node("n", lambda state: state).add_edge(START, "n").compile(name="inner")
    graph = stoppable_graph(plain)

    def outer(inner):
        return StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()

    assert outer(graph).get_graph().to_json() == outer(plain).get_graph().to_json()
    assert to_json_not_implemented(graph)["id"] == to_json_not_implemented(plain)["id"]
    about = operator.attrgetter("__module__", "__name__", "__qualname__", "__doc__")
    assert about(type(graph)) == about(type(plain))


async def test_a_copy_with_another_config_is_stoppable_too():
    world = World()
    graph = stoppable_graph(cases.async_tool(world, InMemorySaver())).with_config(tags=["mine"])
    handle = await stoppable.spawn(graph, turn(), CONFIG)
    await world.hold.reached()
    await handle.stop("immediate")
    assert (await handle.outcome()).status is Status.STOPPED
    assert (await graph.aget_state(CONFIG)).values["messages"][-1].type == "tool"


async def test_what_a_graph_is_told_holds_for_its_subgraphs():
    world = World()
    graph = stoppable_graph(cases.persistent_subgraph(world, InMemorySaver()), on_stop="leave")
    handle = await stoppable.spawn(graph, turn(), CONFIG)
    await world.hold.reached()
    await handle.stop("immediate")
    assert (await handle.outcome()).status is Status.STOPPED
    inner = {"configurable": {"thread_id": "1", "checkpoint_ns": "inner"}}
    assert (await graph.aget_state(inner)).values["messages"][-1].type == "ai"  # not sealed


async def test_a_graph_is_not_a_factory_of_graphs_and_is_started_with_keywords_too():
    graph = stoppable_graph(cases.agent_graph(Scripted(), [World().tool("book")]), name="trip")
    assert not callable(graph)  # LangGraph's own server calls what can be called, and expects a graph
    handle = await stoppable.spawn(graph, input=turn(), config=CONFIG)
    assert handle.run.name == "trip"
    assert (await handle.result())["messages"][-1].content == "done"

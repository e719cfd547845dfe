"""What models say inside a graph and not to its user never becomes an answer, wherever the stop comes."""

from __future__ import annotations

import asyncio
from inspect import signature

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, SummarizationMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

import stoppable
from stoppable import Status
from stoppable.adapters.langgraph import stoppable_graph

from .cases import CONFIG, World, agent_graph, turn
from .scripted import DEADLINE, Scripted, Streaming, calls

INTERNAL = "internal words that go on and on"


class Guard(AgentMiddleware):
    """Asks a model before each answer."""

    def __init__(self, model):
        self.model = model

    def before_model(self, state, runtime):
        self.model.invoke("Is this allowed?")

    async def abefore_model(self, state, runtime):
        await self.model.ainvoke("Is this allowed?")


def guarded(inner):
    return create_agent(Streaming(), [], middleware=[Guard(inner)], checkpointer=InMemorySaver())


def summarizing(inner):
    middleware = SummarizationMiddleware(model=inner, trigger=("messages", 2), keep=("messages", 1))
    return create_agent(Streaming(), [], middleware=[middleware], checkpointer=InMemorySaver())


def in_a_tool(inner):
    @tool
    async def book() -> str:
        """Book it."""
        return (await inner.ainvoke("Which one?")).text

    return agent_graph(Scripted("done", calls("book")), [book], checkpointer=InMemorySaver())


def in_a_graph_in_a_tool(inner):
    @tool
    async def book() -> str:
        """Book it."""

        async def ask(state):
            return {"messages": [await inner.ainvoke(state["messages"])]}

        within = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
        return (await within.ainvoke(turn()))["messages"][-1].text

    return agent_graph(Scripted("done", calls("book")), [book], checkpointer=InMemorySaver())


def tagged(inner):
    quiet = inner.with_config(tags=["nostream"])

    async def guard(state):
        if len(state["messages"]) > 2:
            async for _ in quiet.astream("Is this allowed?"):
                pass

    async def answer(state):
        return {"messages": [await Streaming().ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("guard", guard).add_node("answer", answer)
    return builder.add_edge(START, "guard").add_edge("guard", "answer").compile(checkpointer=InMemorySaver())


GRAPHS = [guarded, in_a_tool, in_a_graph_in_a_tool, tagged]
if "trigger" in signature(SummarizationMiddleware).parameters:
    GRAPHS.append(summarizing)  # in langchain 1.0 it blocks the event loop while it summarizes


async def stopped(graph, hold, mode):
    """Stop a turn of a graph while it is held, and return its outcome and the answers in the thread."""
    handle = await stoppable.spawn(graph, turn("go"), CONFIG)
    await hold.reached()
    await handle.stop(mode)
    hold.release()
    async with asyncio.timeout(DEADLINE):
        outcome = await handle.outcome()
    assert outcome.status is Status.STOPPED
    messages = (await graph.aget_state(CONFIG)).values["messages"]
    return outcome, [one.text.strip() for one in messages if one.type == "ai" and one.text]


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
@pytest.mark.parametrize("build", GRAPHS)
async def test_internal_text_is_neither_kept_nor_told_when_the_stop_comes_in_the_middle_of_it(build, mode):
    world = World()
    inner = Streaming()
    graph = stoppable_graph(build(inner))
    await graph.ainvoke(turn(), CONFIG)
    inner.script, inner.hold = [INTERNAL], world.hold
    outcome, answers = await stopped(graph, world.hold, mode)
    assert answers == ["done"]
    assert not outcome.partial
    assert (await graph.ainvoke(turn("again"), CONFIG))["messages"][-1].text.strip() == "done"


def answering(world, saver, kind=Streaming, **model):
    """An agent with a guard and a tool, both of which ask a model of their own, that answers afterwards."""

    @tool
    async def book() -> str:
        """Book it."""
        return (await kind(INTERNAL).ainvoke("Which one?")).text

    answers = Streaming(calls("book"), "one two three", **model)
    guard = Guard(kind(INTERNAL, INTERNAL))
    return create_agent(answers, [book], middleware=[guard], checkpointer=saver)


@pytest.mark.parametrize("kind", [Scripted, Streaming])
async def test_internal_text_is_not_told_when_the_stop_comes_after_it(kind):
    world = World()
    graph = stoppable_graph(answering(world, InMemorySaver(), kind, hold=world.hold))
    outcome, answers = await stopped(graph, world.hold, "immediate")
    assert [one[:7] for one in answers] == ["one two"]
    assert outcome.partial.startswith("one two")


async def test_text_that_was_complete_before_the_answer_began_in_the_same_node_is_not_an_answer():
    world = World()
    guard, model = Streaming(INTERNAL), Streaming("one two three", hold=world.hold)

    async def answer(state):
        await guard.ainvoke("Is this allowed?")
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    graph = stoppable_graph(builder.compile(checkpointer=InMemorySaver()))
    _, answers = await stopped(graph, world.hold, "immediate")
    assert [one[:7] for one in answers] == ["one two"]


async def test_text_that_is_complete_is_kept_if_the_node_is_stopped_before_it_returns():
    world = World()
    model = Streaming("one two three")

    async def answer(state):
        said = await model.ainvoke(state["messages"])
        await world.hold.wait_async()
        return {"messages": [said]}

    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    graph = stoppable_graph(builder.compile(checkpointer=InMemorySaver()))
    handle = await stoppable.spawn(graph, turn("go"), CONFIG)
    await world.hold.reached()
    await handle.stop("immediate")
    assert (await handle.outcome()).status is Status.STOPPED
    assert (await graph.aget_state(CONFIG)).values["messages"][-1].text.strip() == "one two three"

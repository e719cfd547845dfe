"""Graphs of every shape, each held in the middle of something, for stops in every mode."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from typing_extensions import TypedDict

from .scripted import Held, Scripted, Streaming, calls

CONFIG = {"configurable": {"thread_id": "1"}}


def turn(text: str = "hello") -> dict[str, Any]:
    return {"messages": [("user", text)]}


class World:
    """What one graph has: a place to be held in, and the effects of its tools."""

    def __init__(self) -> None:
        self.hold = Held()
        self.effects: list[str] = []
        self.model: Scripted = Scripted()

    def tool(self, name: str, *, held: bool = False, is_async: bool = True) -> StructuredTool:
        async def perform() -> str:
            if held:
                await self.hold.wait_async()
            self.effects.append(name)
            return f"{name} done"

        def perform_blocking() -> str:
            if held:
                self.hold.wait()
            self.effects.append(name)
            return f"{name} done"

        both = {"func": perform_blocking, "coroutine": perform} if is_async else {"func": perform_blocking}
        return StructuredTool.from_function(**both, name=name, description=f"Do {name}.")


def model_node(model: Any) -> RunnableLambda:
    def call(state: Any) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    async def acall(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return RunnableLambda(call, acall)


def agent_graph(model: Any, tools: list[Any], state: Any = MessagesState, **compiled: Any) -> Any:
    graph = StateGraph(state)
    graph.add_node("model", model_node(model))
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(**compiled)


def around(inner: Any, saver: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("inner", inner)
    graph.add_edge(START, "inner")
    return graph.compile(checkpointer=saver)


# The cases


def mid_llm(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book"), hold=world.hold)
    return agent_graph(world.model, [world.tool("book")], checkpointer=saver)


def mid_stream(world: World, saver: Any) -> Any:
    world.model = Streaming("one two three four five", hold=world.hold)
    return agent_graph(world.model, [world.tool("book")], checkpointer=saver)


def async_tool(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book"))
    return agent_graph(world.model, [world.tool("book", held=True)], checkpointer=saver)


def sync_tool(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book"))
    return agent_graph(world.model, [world.tool("book", held=True, is_async=False)], checkpointer=saver)


def parallel_tools(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book", "quick"))
    return agent_graph(world.model, [world.tool("book", held=True), world.tool("quick")], checkpointer=saver)


def created_agent(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book", "quick", said="Booking."))
    tools = [world.tool("book", held=True), world.tool("quick")]
    return create_agent(world.model, tools, middleware=[_Counting()], checkpointer=saver)


class _Counting(AgentMiddleware):
    def before_model(self, state: Any, runtime: Any) -> None:
        return None


def subgraph(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book"))
    return around(agent_graph(world.model, [world.tool("book", held=True)]), saver)


def subgraph_sync_tool(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book"))
    return around(agent_graph(world.model, [world.tool("book", held=True, is_async=False)]), saver)


def persistent_subgraph(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book"))
    return around(agent_graph(world.model, [world.tool("book", held=True)], checkpointer=True), saver)


class _Added(TypedDict):
    messages: Annotated[list[BaseMessage], operator.add]


def other_reducer(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book"))
    return agent_graph(world.model, [world.tool("book", held=True)], _Added, checkpointer=saver)


def functional(world: World, saver: Any) -> Any:
    world.model = Scripted(calls("book"))
    book, other = world.tool("book", held=True), world.tool("other")

    @task
    async def step(number: int) -> Any:
        return await (book if number == 1 else other).ainvoke({})

    @entrypoint(checkpointer=saver)
    async def graph(given: Any, *, previous: Any = None) -> Any:
        history = add_messages(previous or [], given["messages"])
        if len(history) == 1:
            for number in range(4):
                await step(number)
        return entrypoint.final(value={"messages": history}, save=history)

    return graph


@dataclasses.dataclass(frozen=True)
class Case:
    build: Callable[[World, Any], Any]
    in_flight: str
    answers: tuple[str, ...] = ()
    """What the thread says of each tool call after an immediate stop: done, open (may have happened) or never."""
    is_blocking: bool = True
    """Whether it can be called without an event loop."""
    in_thread: bool = False
    """Whether what is held is on a thread, which no stop can end."""

    def __str__(self) -> str:
        return self.build.__name__


CASES = [
    Case(mid_llm, "llm:Scripted"),
    Case(mid_stream, "llm:Streaming"),
    Case(async_tool, "tool:book", ("open",)),
    Case(sync_tool, "tool:book", in_thread=True),
    Case(parallel_tools, "tool:book", ("open", "done")),
    Case(created_agent, "tool:book", ("open", "done")),
    Case(subgraph, "tool:book"),
    Case(subgraph_sync_tool, "tool:book", in_thread=True),
    Case(persistent_subgraph, "tool:book"),
    Case(other_reducer, "tool:book", ("open",)),
    Case(functional, "tool:book", is_blocking=False),
]

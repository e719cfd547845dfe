"""The agent as a graph of one node, for ``langgraph dev``."""

from __future__ import annotations

from bench.protocol_stops.agent import answer
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph


async def work(state: MessagesState) -> dict:
    write = get_stream_writer()

    async def say(word: str) -> None:
        write(word)

    return {"messages": [("ai", await answer(str(state["messages"][-1].content), say))]}


builder = StateGraph(MessagesState)
builder.add_node("work", work)
builder.add_edge(START, "work")
builder.add_edge("work", END)
graph = builder.compile()

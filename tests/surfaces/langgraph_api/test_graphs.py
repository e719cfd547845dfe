"""A graph of LangGraph with a checkpointer is served as it is, and keeps its own history."""

import asyncio

import pytest

from ..openai_api.agents import GATES
from .conftest import begin, chat, connected, new_thread, said, wait_until

pytest.importorskip("langgraph.checkpoint.memory", reason="langgraph is missing")

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph


async def answer(state):
    text = state["messages"][-1].content
    if text == "wait":
        GATES.reached.set()
        await asyncio.sleep(600)  # only a stop ends it
    return {"messages": [("ai", f"about {text}")]}


def graph():
    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=InMemorySaver())


def test_a_graph_is_stopped_and_its_thread_goes_on():
    with connected(agents={"graph": graph()}) as (service, client):
        thread = new_thread(client)
        client.runs.wait(thread, "graph", input=said("tides"))
        assert chat(client, thread) == [("human", "tides"), ("ai", "about tides")]
        _, run_id = begin(client, "graph", said("wait"), thread)
        wait_until(GATES.reached.is_set)
        client.runs.cancel(thread, run_id, wait=True)
        assert client.runs.get(thread, run_id)["status"] == "interrupted"
        assert chat(client, thread)[2:] == [("human", "wait")]
        values = client.runs.wait(thread, "graph", input=said("moons"))
        heard = [(one["type"], one["content"]) for one in values["messages"]]
        assert heard[:3] == [("human", "tides"), ("ai", "about tides"), ("human", "wait")]
        assert heard[-2:] == [("human", "moons"), ("ai", "about moons")]
        assert chat(client, thread) == heard
        assert service.supervisor.blocking.get(run_id).status == "stopped"

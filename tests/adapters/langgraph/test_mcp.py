"""MCP servers of langchain-mcp-adapters: a run's own one ends with it, one that runs share belongs to none of them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from tests.process_states import is_alive

import stoppable
from stoppable.adapters.langgraph import key_of, stoppable_graph

from .scripted import DEADLINE

SERVER = Path(__file__).parents[1] / "mcp_server.py"
MODES = ["graceful", "immediate", "kill"]
PATIENT = stoppable.Policy(grace=DEADLINE, cancel=DEADLINE, kill=DEADLINE)  # a server ends late on a busy machine


@pytest.fixture
def client(tmp_path):
    command = {"command": sys.executable, "args": [str(SERVER), str(tmp_path)], "transport": "stdio"}
    return MultiServerMCPClient({"held": command})


class Shared:
    """The tools of one session, which the first run that needs them opens, for all runs."""

    def __init__(self, client):
        self._client = client
        self._is_ready, self._is_closing = asyncio.Event(), asyncio.Event()
        self._task = None
        self._tools = []

    async def get(self):
        if self._task is None:
            with stoppable.detached():  # it outlives the run that happens to be the first
                self._task = asyncio.create_task(self._keep())
        await self._is_ready.wait()
        if self._task.done():
            self._task.result()
        return self._tools

    async def _keep(self):
        try:
            async with self._client.session("held") as session:
                self._tools = await load_mcp_tools(session)
                self._is_ready.set()
                await self._is_closing.wait()
        finally:
            self._is_ready.set()

    async def close(self):
        self._is_closing.set()
        await self._task


class Chat:
    """A graph that calls the tool ``hold`` for its user, whose name is the thread."""

    def __init__(self, supervisor, call):
        async def ask(state):
            who = state["messages"][-1].content
            return {"messages": [AIMessage("", tool_calls=[{"name": "hold", "args": {"who": who}, "id": who}])]}

        async def answer(state):
            return {"messages": [AIMessage(f"the tool said {state['messages'][-1].content}")]}

        builder = StateGraph(MessagesState)
        builder.add_node("ask", ask).add_node("tools", call).add_node("answer", answer)
        builder.add_edge(START, "ask").add_edge("ask", "tools").add_edge("tools", "answer")
        self._supervisor = supervisor
        self._graph = stoppable_graph(builder.compile(InMemorySaver()), supervisor, policy=PATIENT)

    def say(self, user):
        thread = {"configurable": {"thread_id": user}}
        return asyncio.create_task(self._graph.ainvoke({"messages": [("user", user)]}, thread))

    async def stop(self, user, mode, folder):
        """Stop the turn of a user, let its call finish if the stop does, and return the receipt when it is over."""
        [receipt] = await self._supervisor.stop(key=key_of(user), mode=mode)
        if mode == "graceful":
            (folder / f"{user} released").touch()
        async with asyncio.timeout(DEADLINE):
            handle = self._supervisor.handle(receipt.run_id)
            assert (await handle.outcome()).status == "stopped"
            return await handle.receipt()


async def entered(folder, user):
    """Wait until the call of a user is in its server, and return the pid of that."""
    async with asyncio.timeout(3 * DEADLINE):  # a server imports for long on a busy machine
        while not (folder / f"{user} entered").exists() or not (folder / f"{user} entered").read_text():
            await asyncio.sleep(0.01)
    return int((folder / f"{user} entered").read_text())


def commands(receipt):
    return [node.kind for node in receipt.entries if node.kind == "spawn"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", MODES)
async def test_a_stop_of_the_run_that_opened_a_shared_session_leaves_the_call_of_another_user_alone(
    client, tmp_path, mode
):
    shared = Shared(client)

    async def call(state, config):
        return await ToolNode(await shared.get()).ainvoke(state, config)

    async with stoppable.Supervisor() as supervisor:
        chat = Chat(supervisor, call)
        ann = chat.say("ann")
        server = await entered(tmp_path, "ann")
        bob = chat.say("bob")
        assert await entered(tmp_path, "bob") == server
        receipt = await chat.stop("ann", mode, tmp_path)
        assert commands(receipt) == []
        with pytest.raises(stoppable.RunStopped):
            await ann
        assert is_alive(server), "the stop of one user ended the server of all"
        (tmp_path / "bob released").touch()
        async with asyncio.timeout(DEADLINE):
            assert "held for bob" in (await bob)["messages"][-1].content
        await shared.close()
        assert not is_alive(server)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", MODES)
async def test_tools_of_the_client_start_a_server_for_each_call_which_ends_with_its_run(client, tmp_path, mode):
    tools = await client.get_tools()

    async def call(state, config):
        return await ToolNode(tools).ainvoke(state, config)

    async with stoppable.Supervisor() as supervisor:
        chat = Chat(supervisor, call)
        ann, bob = chat.say("ann"), chat.say("bob")
        hers, his = await entered(tmp_path, "ann"), await entered(tmp_path, "bob")
        assert hers != his
        receipt = await chat.stop("ann", mode, tmp_path)
        assert commands(receipt) == ["spawn"]
        assert not is_alive(hers)
        with pytest.raises(stoppable.RunStopped):
            await ann
        (tmp_path / "bob released").touch()
        async with asyncio.timeout(DEADLINE):
            assert "held for bob" in (await bob)["messages"][-1].content
        assert not is_alive(his)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", MODES)
async def test_a_session_that_a_node_opens_for_itself_ends_with_the_run(client, tmp_path, mode):
    async def call(state, config):
        async with client.session("held") as session:
            return await ToolNode(await load_mcp_tools(session)).ainvoke(state, config)

    async with stoppable.Supervisor() as supervisor:
        chat = Chat(supervisor, call)
        ann = chat.say("ann")
        server = await entered(tmp_path, "ann")
        receipt = await chat.stop("ann", mode, tmp_path)
        assert commands(receipt) == ["spawn"]
        assert not is_alive(server)
        with pytest.raises(stoppable.RunStopped):
            await ann

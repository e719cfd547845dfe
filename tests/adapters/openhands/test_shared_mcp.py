"""An MCP server belongs to whoever keeps its client, never to the run in which it happened to be started."""

import asyncio
import sys
from pathlib import Path

import pytest
from openhands.sdk import Agent
from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.mcp.utils import DefaultMCPToolProvider
from tests.process_states import is_alive

import stoppable
from stoppable.adapters.openhands import run_of, supervise

from .test_mcp import PATIENT
from .world import DEADLINE, Scripted, answers, asks, call, says, status

pytestmark = pytest.mark.timeout(6 * DEADLINE)
SERVER = Path(__file__).parents[1] / "mcp_server.py"


class OneServer(DefaultMCPToolProvider):
    """Gives all conversations the tools of one client, which it makes when they are first needed."""

    def __init__(self):
        self.client = None

    def create_tools(self, *args, **kwargs):
        if self.client is None:
            self.client = super().create_tools(*args, **kwargs)
        return self.client


@pytest.fixture(autouse=True)
def instrumented():
    stoppable.instrument()
    yield
    stoppable.uninstrument()


@pytest.fixture
def talk(tmp_path, world):
    conversations = []

    def start(*script, provider=None):
        """Return a conversation that was made, and its server started, in the current run."""
        config = {"test": {"command": sys.executable, "args": ["-W", "ignore", str(SERVER), str(tmp_path)]}}
        agent = Agent(llm=Scripted.from_messages([*script, says("done")]), tools=[], mcp_config=config)
        conversation = LocalConversation(
            agent=agent, workspace=str(tmp_path), visualizer=None, stuck_detection=False, mcp_tool_provider=provider
        )
        conversations.append(supervise(conversation, policy=PATIENT))
        conversation.send_message("go")
        return conversation

    yield start
    for conversation in conversations:
        conversation.close()


def servers(folder):
    """Return the pids of the servers that were started, and whether each is alive."""
    pids = [int(path.name.split()[1]) for path in folder.glob("pid *")]
    return [(pid, is_alive(pid)) for pid in pids]


async def entered(folder, who):
    async with asyncio.timeout(3 * DEADLINE):  # a server imports for long on a busy machine
        while not (folder / f"{who} entered").exists():
            await asyncio.sleep(0.01)


async def until_ended(folder):
    async with asyncio.timeout(DEADLINE):
        while any(is_alive for _, is_alive in servers(folder)):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("mode", ["graceful", "immediate", "kill"])
async def test_a_stop_of_the_run_that_started_a_shared_server_leaves_the_call_of_another_user_alone(
    talk, tmp_path, mode
):
    provider, conversations = OneServer(), {}

    async def chat(user):
        conversation = conversations[user] = await asyncio.to_thread(
            talk, asks(call("hold", user, who=user)), provider=provider
        )
        await conversation.arun()

    async with stoppable.Supervisor() as supervisor:
        ann = await supervisor.start(chat, "ann", owner="ann", policy=PATIENT)
        await entered(tmp_path, "ann")
        bob = await supervisor.start(chat, "bob", owner="bob", policy=PATIENT)
        await entered(tmp_path, "bob")
        await ann.stop(mode)
        if mode == "graceful":  # it lets the call finish
            (tmp_path / "ann released").touch()
        assert (await ann.outcome()).status == "stopped"
        assert [node.name for node in (await ann.receipt()).entries if node.kind == "spawn"] == []
        [(_, is_alive)] = servers(tmp_path)
        assert is_alive, "the stop of one user ended the server of all"
        (tmp_path / "bob released").touch()
        async with asyncio.timeout(DEADLINE):
            assert (await bob.outcome()).status == "completed"
        assert "held for bob" in answers(conversations["bob"])["bob"]
    conversations["bob"].close()
    await until_ended(tmp_path)  # it ends with its client


async def test_the_next_run_of_a_conversation_finds_the_server_that_an_earlier_run_started(talk, tmp_path):
    async def begin():
        return await asyncio.to_thread(talk, *(asks(call("hold", name, who=name)) for name in "ab"))

    conversation = await (await stoppable.spawn(begin)).result()
    running = asyncio.create_task(conversation.arun())
    await entered(tmp_path, "a")
    conversation.interrupt()
    await running
    assert run_of(conversation).outcome.status == "stopped"
    [(pid, is_alive)] = servers(tmp_path)
    assert is_alive
    (tmp_path / "b released").touch()
    await conversation.arun()
    assert status(conversation) == "finished"
    assert "held for b" in answers(conversation)["b"]
    assert servers(tmp_path) == [(pid, True)]
    conversation.close()
    await until_ended(tmp_path)

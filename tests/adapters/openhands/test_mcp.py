"""Tool calls of MCP servers: a stop is passed on, and what is said about the work is what the server has said."""

import asyncio
import sys

import pytest
from openhands.sdk import Agent, Conversation

import stoppable
from stoppable.adapters.openhands import run_of, supervise, tool_calls

from .world import DEADLINE, Scripted, answers, asks, call, says, status

PATIENT = stoppable.Policy(cancel=DEADLINE, kill=DEADLINE)  # a server answers late on a busy machine
pytestmark = pytest.mark.timeout(6 * DEADLINE)
SERVER = """
import asyncio, pathlib, sys, time
from fastmcp import FastMCP

server, folder = FastMCP("test"), pathlib.Path(sys.argv[1])

@server.tool()
async def work(name: str) -> str:
    (folder / name).write_text("begun")
    try:
        await asyncio.sleep(300)
    except asyncio.CancelledError:
        (folder / name).write_text("cancelled")
        raise
    return "done"

@server.tool()
async def stubborn(name: str) -> str:
    (folder / name).write_text("begun")
    while not (folder / "go").exists():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass
    (folder / name).write_text("finished")
    return "done"

@server.tool()
def quick() -> str:
    return "quick answer"

server.run(transport="stdio", show_banner=False)
"""
DEAF = """
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
schema = {"type": "object", "properties": {"name": {"type": "string"}}}
tool = {"name": "work", "description": "works", "inputSchema": schema}
for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                      "serverInfo": {"name": "deaf", "version": "1"}}
        case "tools/list":
            result = {"tools": [tool]}
        case "tools/call":
            (folder / message["params"]["arguments"]["name"]).write_text("begun")
            continue
        case "notifications/cancelled":
            (folder / "told").write_text(json.dumps(message["params"]))
            continue
        case _:
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.fixture
def talk(tmp_path, world):
    made = []

    def make(*script, server=SERVER, at_once=1, **options):
        path = tmp_path / "server.py"
        path.write_text(server)
        config = {"test": {"command": sys.executable, "args": ["-W", "ignore", str(path), str(tmp_path)]}}
        agent = Agent(
            llm=Scripted.from_messages([*script]), tools=[], mcp_config=config, tool_concurrency_limit=at_once
        )
        conversation = supervise(
            Conversation(agent=agent, workspace=str(tmp_path), visualizer=None, stuck_detection=False), **options
        )
        made.append(conversation)
        conversation.send_message("go")
        return conversation

    yield make
    for conversation in made:
        conversation.close()


async def reads(path, text):
    async with asyncio.timeout(3 * DEADLINE):  # a server imports for long on a busy machine
        while not path.exists() or text not in path.read_text():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("is_async", [True, False], ids=["arun", "run"])
async def test_a_stop_cancels_the_tool_call_at_the_server(talk, tmp_path, is_async):
    conversation = talk(asks(call("work", "one", name="a")), asks(call("quick", "two")), says("done"), policy=PATIENT)
    running = asyncio.create_task(conversation.arun() if is_async else asyncio.to_thread(conversation.run))
    await reads(tmp_path / "a", "begun")
    conversation.interrupt()
    await running
    assert run_of(conversation).outcome.status == "stopped", run_of(conversation).receipt.entries
    await reads(tmp_path / "a", "cancelled")
    fates = [node.fate for node in run_of(conversation).receipt.entries if node.kind == "tool"]
    assert fates == ["closed"]
    assert status(conversation) == "paused"
    await conversation.arun()  # with the same server
    assert "quick answer" in answers(conversation)["two"]
    assert status(conversation) == "finished"


async def test_one_tool_call_of_a_server_is_cancelled_alone(talk, tmp_path):
    both = asks(call("work", "one", name="a"), call("stubborn", "two", name="b"))
    conversation = talk(both, says("done"), at_once=2, policy=PATIENT)
    running = asyncio.create_task(conversation.arun())
    await reads(tmp_path / "a", "begun")
    await reads(tmp_path / "b", "begun")
    tool_calls(conversation)["one"].stop("immediate", "too slow")
    await reads(tmp_path / "a", "cancelled")
    (tmp_path / "go").touch()
    await running
    assert status(conversation) == "finished"
    assert "stopped (too slow)" in answers(conversation)["one"]
    assert "done" in answers(conversation)["two"]


async def test_a_server_that_does_not_answer_a_cancel_was_told_and_the_run_is_lost(talk, tmp_path):
    conversation = talk(
        asks(call("work", "one", name="a")), says("done"), server=DEAF, policy=stoppable.Policy(cancel=0.1, kill=0.1)
    )
    running = asyncio.create_task(conversation.arun())
    await reads(tmp_path / "a", "begun")
    conversation.interrupt()
    await running
    await reads(tmp_path / "told", "the tool call was stopped")
    run = run_of(conversation)
    assert run.outcome.status == "lost"
    assert any("work" in node.name and node.fate == "abandoned" for node in run.receipt.entries), run.receipt
    conversation.send_message("again")
    await conversation.arun()
    assert status(conversation) == "finished"

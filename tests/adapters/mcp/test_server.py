"""Tool calls of servers are runs: a cancel by any client is a stop, and so is one by whoever has the store."""

import asyncio
import threading
import time

import mcp_types
import pytest
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from tests.waiting import until

import stoppable
from stoppable import Policy
from stoppable.adapters.mcp import messages, supervise

from .conftest import DEADLINE, FRAMEWORKS, fastmcp

PATIENT = Policy(cancel=60, kill=60)
QUICK = Policy(grace=0.2, interrupt=0.1, cancel=0.3, kill=0.5)


class Tools:
    """A server in this process, and what its tools did."""

    def __init__(self, framework="mcp"):
        self.server = MCPServer("tools") if framework == "mcp" else fastmcp.FastMCP("tools")
        self.begun, self.ended, self.release = asyncio.Event(), threading.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        context = Context if framework == "mcp" else fastmcp.Context

        @self.server.tool()
        async def wait(ctx: context) -> str:
            await ctx.report_progress(1, 4, "one of four")
            stoppable.append_partial("one of four")
            self.begun.set()
            try:
                await stoppable.sleep(60)
            finally:
                self.ended.set()
            return "waited"

        @self.server.tool()
        def work() -> str:
            loop.call_soon_threadsafe(self.begun.set)
            self.release.wait(60)
            self.ended.set()
            return "worked"

    def client(self):
        if isinstance(self.server, MCPServer):
            return Client(self.server)
        return fastmcp.Client(self.server)


@pytest.fixture(params=FRAMEWORKS)
async def tools(request):
    tools = Tools(request.param)
    yield tools
    tools.release.set()


async def call(client, tool, **kwargs):
    """Call a tool, and return its answer though it is an error."""
    call = client.call_tool if isinstance(client, Client) else client.call_tool_mcp
    return await call(tool, {}, **kwargs)


async def test_a_cancel_by_a_client_stops_the_run_of_the_call(tools):
    async with asyncio.timeout(DEADLINE), stoppable.Supervisor() as supervisor:
        supervise(tools.server, supervisor, policy=PATIENT)
        async with tools.client() as client:
            calling = asyncio.create_task(call(client, "wait"))
            await tools.begun.wait()
            calling.cancel()
            (summary,) = await until_over(supervisor)
            assert (summary.name, summary.status, tools.ended.is_set()) == ("wait", "stopped", True)
            record = await supervisor.get(summary.id)
            assert (record.stop.reason.kind, record.stop.reason.source) == ("disconnect", "mcp")
            assert record.outcome.partial == "one of four"


async def test_a_sync_tool_is_waited_for_and_its_fate_is_that_of_its_thread(tools):
    async with asyncio.timeout(DEADLINE), stoppable.Supervisor() as supervisor:
        supervise(tools.server, supervisor, policy=PATIENT)
        async with tools.client() as client:
            calling = asyncio.create_task(call(client, "work"))
            await tools.begun.wait()
            calling.cancel()
            await until_stopping(supervisor)
            assert not tools.ended.is_set()
            tools.release.set()
            (summary,) = await until_over(supervisor)
            assert tools.ended.is_set()
            receipt = (await supervisor.get(summary.id)).receipt
            assert [str(entry.fate) for entry in receipt.entries if entry.kind == "tool"] == ["finished"]


async def until_over(supervisor):
    while not (runs := [run for run in (await supervisor.list()).runs if run.status.terminal]):
        await asyncio.sleep(0.005)
    return runs


async def until_stopping(supervisor):
    deadline = time.monotonic() + DEADLINE / 2
    while True:
        runs = (await supervisor.list()).runs
        if any(run.status == "stopping" for run in runs):
            return
        assert time.monotonic() < deadline, (runs, [task.get_stack() for task in asyncio.all_tasks()])
        assert not any(run.status.terminal for run in runs), runs
        await asyncio.sleep(0.005)


async def test_a_stop_of_the_run_answers_the_call_with_what_there_is(tools):
    async with asyncio.timeout(DEADLINE), stoppable.Supervisor() as supervisor:
        supervise(tools.server, supervisor)
        seen = []

        async def progress(done, total, message):
            seen.append((done, total, message))

        async with tools.client() as client:
            heard = {
                "progress_handler" if fastmcp and isinstance(client, fastmcp.Client) else "progress_callback": progress
            }
            calling = asyncio.create_task(call(client, "wait", **heard))
            await tools.begun.wait()
            await until(lambda: seen)  # a notification of its own
            (run,) = (await supervisor.list()).runs
            await supervisor.stop(run.id, reason="enough", wait=30)
            answer = await calling
        assert answer.is_error
        assert [block.text for block in answer.content] == [
            "The tool wait was stopped: enough. What it did before may have taken effect.",
            "What it had produced: one of four",
        ]
        assert answer.meta[messages.END] == {"status": "stopped", "fate": "closed"}
        assert seen == [(1, 4, "one of four")]
        events = [event async for event in supervisor.events(run.id)]
        (reported,) = [event.data for event in events if event.type == "progress"]
        assert {"progress": 1, "total": 4, "message": "one of four"}.items() <= reported["data"].items()


async def test_a_tool_that_cannot_be_ended_is_answered_as_one_that_may_still_be_running(tools):
    async with asyncio.timeout(DEADLINE), stoppable.Supervisor() as supervisor:
        supervise(tools.server, supervisor, policy=QUICK)
        async with tools.client() as client:
            calling = asyncio.create_task(call(client, "work"))
            await tools.begun.wait()
            (run,) = (await supervisor.list()).runs
            await supervisor.stop(run.id, mode="immediate", reason="enough", wait=30)
            answer = await calling
            assert answer.content[0].text == "The tool work was told to stop: enough. It may still be running."
            assert answer.meta[messages.END] == {"status": "lost"}
            tools.release.set()
            await until(tools.ended.is_set)


async def test_a_run_that_calls_a_tool_which_cannot_be_ended_is_lost_when_the_server_says_so():
    tools = Tools()
    async with asyncio.timeout(DEADLINE), stoppable.Supervisor() as supervisor:
        supervise(tools.server, supervisor, policy=QUICK)
        async with tools.client() as client:
            handle = await stoppable.spawn(call, client, "work")
            await tools.begun.wait()
            await handle.stop("immediate")
            outcome = await handle.outcome()
            fates = [str(entry.fate) for entry in handle.run.receipt.entries if entry.kind == "remote"]
            assert (outcome.status, fates) == ("lost", ["abandoned"])
            tools.release.set()
            await until(tools.ended.is_set)


async def test_a_call_that_is_not_stopped_is_answered_as_always(tools):
    supervise(tools.server)
    tools.release.set()
    async with asyncio.timeout(DEADLINE), tools.client() as client:
        answer = await call(client, "work")
        assert (answer.is_error, answer.content[0].text) == (False, "worked")
        assert messages.END not in (answer.meta or {})
        assert [tool.name for tool in (await listed(client))] == ["wait", "work"]


async def listed(client):
    tools = await client.list_tools()
    return tools if isinstance(tools, list) else tools.tools


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"call": "nothing", "mode": "kill", "reason": ""}, "no call 'nothing'"),
        ({"call": "nothing", "mode": "softly", "reason": ""}, "not a stop"),
        ({"mode": "kill"}, "not a stop"),
        ({"call": 7, "mode": None, "reason": []}, "not a stop"),
    ],
)
async def test_a_wrong_stop_is_an_error_of_the_protocol(params, message):
    tools = Tools()
    supervise(tools.server)

    class AnyRequest(mcp_types.Request[dict, str]):
        method: str = messages.STOP
        params: dict

    async with asyncio.timeout(DEADLINE), tools.client() as client:
        request = AnyRequest(params=params)
        with pytest.raises(MCPError, match=message) as caught:
            await client.session.send_request(request, messages.CallStopAnswer)
        assert caught.value.code == mcp_types.INVALID_PARAMS


async def test_a_server_is_supervised_once_and_only_servers_are():
    server = Server("low")
    assert supervise(supervise(server)) is server
    assert [type(one).__name__ for one in server.middleware].count("_ToolRuns") == 1
    with pytest.raises(TypeError, match="'no server' is not an MCP server: use an MCPServer"):
        supervise("no server")
    with pytest.raises(ValueError, match="softly"):
        supervise(Server("low"), mode="softly")


async def test_only_so_many_ended_calls_are_remembered(monkeypatch):
    monkeypatch.setattr("stoppable.adapters.mcp.server._CALLS_KEPT", 2)
    tools = Tools()
    supervise(tools.server)
    tools.release.set()
    async with asyncio.timeout(DEADLINE), tools.client() as client:
        for _ in range(5):
            await (await stoppable.spawn(call, client, "work")).result()
    (runs,) = [one for one in tools.server.middleware if hasattr(one, "_runs")]
    assert len(runs._runs) == 2

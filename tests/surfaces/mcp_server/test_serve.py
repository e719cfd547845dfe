"""`stoppable serve` offers its agents over MCP, unless it is told not to."""

import httpx
import pytest
from mcp.client import Client
from tests.served import serving_process

from .conftest import over, text_of
from .tasks_client import Tasks, begun, cancel, settled


async def test_serve_offers_it_and_says_where():
    with serving_process("--store", "memory://") as (server, url):
        assert f"\n  MCP at {url}/mcp\n" in server.greeting()
        async with Client(f"{url}/mcp", extensions=[Tasks()]) as client:
            assert "echo" in [tool.name for tool in (await client.list_tools()).tools]
            task = await begun(client, "waiting")
            await cancel(client, task.task_id)
            assert (await settled(client, task.task_id)).status == "cancelled"
            assert (await over(client, task.task_id))["status"] == "stopped"
        async with Client(f"{url}/mcp", mode="legacy") as client:
            assert text_of(await client.call_tool("echo", {"value": "hello"})) == "hello"


def test_serve_may_leave_it_out():
    with serving_process("--store", "memory://", "--no-mcp") as (server, url):
        assert "MCP" not in server.greeting()
        assert httpx.post(f"{url}/mcp", json={}).status_code == 404


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_session_that_is_open_does_not_hold_up_the_end_of_the_server(mode):
    with serving_process("--store", "memory://") as (server, url):
        async with Client(f"{url}/mcp", mode=mode) as client:
            await client.list_tools()
            server.process.terminate()
            assert server.process.wait(60) == 0
            assert "Traceback" not in server.said()

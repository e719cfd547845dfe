"""The surfaces beside ADK's own: the routes and the page of stoppable, also on a port of their own."""

import asyncio

import httpx

from ...ports import held_port
from .serving import Client, asked, served
from .world import DEADLINE


async def tree_of(server, client, *, size):
    """Return the tree of the run once it has ``size`` runs; a tool may begin before the record of its run is stored."""
    async with asyncio.timeout(DEADLINE):
        while client.run_id is None or len(tree := await server.supervisor.tree(client.run_id)) < size:
            await asyncio.sleep(0.005)
    return tree


async def test_the_runs_are_shown_and_stopped_below_the_apps_address(server):
    async with Client(server, "async_tool") as client:
        async with asked(client) as answer:
            await server.world.saw("enter async_tool")
            runs = (await client.http.get("/stoppable/runs", params={"status": "running"})).json()["runs"]
            assert [(run["id"], run["name"], run["owner"]) for run in runs] == [(client.run_id, "async_tool", "ann")]
            stopped = await client.http.post(f"/stoppable/runs/{client.run_id}/stop", json={"mode": "immediate"})
            assert stopped.status_code == 202
        assert answer.result()[-1]["errorCode"] == "INVOCATION_ABORTED"
        page = await client.http.get("/stoppable/")
        assert (page.status_code, "<html" in page.text) == (200, True)


async def test_sub_agents_are_the_tree_of_the_run(server):
    async with Client(server, "sequence") as client:
        async with asked(client):
            await server.world.saw("enter async_tool")
            await server.world.saw("enter other_tool")
            tree = await tree_of(server, client, size=4)
            by_id = {record.id: record for record in tree}
            found = {(by_id[record.parent_id].name if record.parent_id else None, record.name) for record in tree}
            assert found == {(None, "sequence"), ("sequence", "both"), ("both", "left"), ("both", "right")}
            await client.cancel(mode="immediate", wait=20)
        assert {record.status for record in await server.supervisor.tree(client.run_id)} == {"stopped"}


async def test_an_agent_that_is_called_as_a_tool_is_a_child(server):
    async with Client(server, "agent_tool_without_plugins") as client:
        async with asked(client):
            await server.world.saw("enter async_tool")
            tree = await tree_of(server, client, size=2)
            assert [record.name for record in tree] == ["agent_tool_without_plugins", "inner_agent"]
            receipt = (await client.cancel(mode="immediate", wait=20)).json()["receipt"]
        assert "tool:async_tool" in receipt["inFlight"]


async def test_a_stop_is_heard_while_an_async_tool_blocks_the_loop_of_the_app(tmp_path):
    with held_port() as port, served(tmp_path, control_port=port) as server:
        async with Client(server, "blocking_tool") as client, asked(client) as answer:
            await server.world.saw("enter blocking_tool")  # from here on ADK's own server answers nobody
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE) as control:
                response = await control.post(f"{client.path}:cancel")
                assert (response.status_code, response.json()["status"]) == (200, "stopping"), response.text
                assert "finish blocking_tool" not in server.world.notes
                [run] = (await control.get("/runs", params={"status": "stopping"})).json()["runs"]
                assert run["id"] == response.json()["runId"]
            server.world.release_all()
        assert answer.result()[-1]["errorCode"] == "INVOCATION_ABORTED"

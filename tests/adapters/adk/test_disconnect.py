"""A client that leaves: the run goes on or ends, as the policy says, and can be followed again."""

import asyncio
import json

import httpx
import pytest

from .serving import Client, asked, frames, served
from .world import DEADLINE


async def left(client, path, held):
    """Ask, drop the connection while a call is held, and return the id of the run."""
    world = client.server.world
    async with httpx.AsyncClient(base_url=client.server.url, timeout=DEADLINE) as browser:
        asking = asyncio.create_task(browser.post(path, json=client.body("go")))
        await world.saw(f"enter {held}")
        asking.cancel()
        await asyncio.wait([asking])
    [run] = (await client.server.runs(client)).runs
    return run.id


@pytest.mark.parametrize("path", ["/run", "/run_sse"])
async def test_a_run_that_is_kept_goes_on_without_its_client_and_its_answer_is_in_the_session(server, path):
    async with Client(server, "async_tool") as client:
        run_id = await left(client, path, "async_tool")
        server.world.release("async_tool")
        assert (await client.server.over(run_id)).status == "completed"
        assert "cancelled async_tool" not in server.world.notes
        assert "all done" in str(await client.events())


@pytest.mark.parametrize("path", ["/run", "/run_sse"])
async def test_a_kept_run_is_still_stopped_by_its_session(server, path):
    async with Client(server, "async_tool") as client:
        run_id = await left(client, path, "async_tool")
        response = await client.cancel(mode="immediate", wait=20)
        assert (response.status_code, response.json()["runId"]) == (200, run_id)
        assert response.json()["status"] == "stopped"


async def test_a_page_that_is_loaded_again_follows_the_run_in_the_frames_of_adk(server):
    async with Client(server, "stream") as client:
        run_id = await left(client, "/run_sse", "chunk 1")
        async with client.http.stream("GET", f"{client.path}/stream") as response:
            assert response.headers["stoppable-run-id"] == run_id
            assert response.headers["content-type"].startswith("text/event-stream")
            server.world.release_all()
            server.world.release("chunk 1", "chunk 2", "chunk 3")
            told = [event async for event in frames(response)]
        texts = ["".join(part["text"] for part in event["content"]["parts"]) for event in told]
        assert texts == ["part0 ", "part1 ", "part2 ", "part3 ", "part0 part1 part2 part3 "]
        assert {event["author"] for event in told} == {"stream"}
        assert (await client.http.get(f"{client.path}/stream")).status_code == 404, "nothing runs any more"
        # By its id it can still be read.
        again = await client.http.get(f"{client.path}/stream", params={"runId": run_id})
        assert len(again.text.strip().split("\n\n")) == len(told)
        assert [json.loads(line.removeprefix("data: ")) for line in again.text.strip().split("\n\n")] == told


async def test_a_stop_reaches_those_who_follow(server):
    async with Client(server, "stream") as client:
        await left(client, "/run_sse", "chunk 1")
        async with client.http.stream("GET", f"{client.path}/stream") as response:
            await client.cancel(mode="immediate")
            told = [event async for event in frames(response)]
        assert told[-1]["errorCode"] == "INVOCATION_ABORTED"


@pytest.fixture(scope="module")
def stopping_server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("stopping"), on_disconnect="stop") as server:
        yield server


@pytest.mark.parametrize("path", ["/run", "/run_sse"])
@pytest.mark.parametrize("shape", ["async_tool", "agent_tool", "sequence"])
async def test_with_the_policy_stop_nothing_works_on_for_a_client_that_left(stopping_server, path, shape):
    server, world = stopping_server, stopping_server.world
    world.reset()
    async with Client(server, shape) as client:
        run_id = await left(client, path, "async_tool")
        async with asyncio.timeout(DEADLINE):
            while (await server.record(run_id)).status == "running":
                await asyncio.sleep(0.01)
        world.release_all()  # the stop is graceful: what is in flight may finish
        record = await client.server.over(run_id)
        assert (record.status, record.outcome.reason.kind) == ("stopped", "disconnect")
        assert "model of inner_agent" not in world.notes[world.notes.index("enter async_tool") :]
        assert await client.server.live() == []


async def test_an_answer_that_arrived_is_not_a_client_that_left(stopping_server):
    stopping_server.world.reset()
    async with Client(stopping_server, "quick_tool") as client:
        for path in ("/run", "/run_sse"):
            events = await client.say("go", path)
            assert "all done" in str(events)
            assert (await client.server.over(client.run_id)).status == "completed"


async def test_the_id_of_the_run_is_a_header_and_one_session_may_have_two_runs(server):
    async with Client(server, "async_tool") as one, Client(server, "async_tool", session=one.session) as two:
        async with asked(one) as first, asked(two, path="/run") as second:
            await server.world.saw("enter async_tool", 2)
            response = await one.cancel(mode="immediate")
            assert len(response.json()["others"]) == 1
        assert {one.run_id, two.run_id} == {response.json()["runId"], response.json()["others"][0]["runId"]}
        assert first.result()[-1]["errorCode"] == second.result()[-1]["errorCode"] == "INVOCATION_ABORTED"

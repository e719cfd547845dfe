"""The endpoint that ADK's users asked for (google/adk-python issue 2425), and what they found wrong with others."""

import asyncio

import pytest

from .serving import Client, asked
from .world import DEADLINE


async def test_the_stop_is_seen_inside_the_agent(server):
    async with Client(server, "async_tool") as client:
        async with asked(client):
            await server.world.saw("enter async_tool")
            await client.cancel(mode="immediate")
        server.world.seen("cancelled async_tool")


async def test_nothing_runs_before_and_after_a_run(server):
    async with Client(server, "quick_tool") as client:
        assert (await client.cancel()).status_code == 404
        await client.say("go")
        await server.over(client.run_id)  # which is a moment after the last event
        response = await client.cancel()
        assert response.status_code == 404
        assert response.json() == {"detail": f"Nothing runs in session {client.session}."}
        assert await server.live() == []
        # It was not kept for the next turn either.
        assert "all done" in str(await client.say("go"))


async def test_a_repeated_stop_answers_with_the_receipt(server):
    async with Client(server, "async_tool") as client:
        async with asked(client):
            await server.world.saw("enter async_tool")
            first = (await client.cancel(mode="immediate", wait=20)).json()
        again = await client.cancel(mode="immediate", runId=client.run_id)
        assert (again.status_code, again.json()["receipt"]["entries"]) == (200, first["receipt"]["entries"])
        assert first["receipt"]["reason"]["actor"] == "ann"
        assert first["receipt"]["inFlight"] == ["tool:async_tool"]


async def test_no_session_is_created_and_no_route_is_shadowed(server):
    async with Client(server, "quick_tool") as client:
        await client.cancel()
        sessions = (await client.http.get(client.path.rpartition("/")[0])).json()
        assert not [one["id"] for one in sessions if "cancel" in one["id"]]
        made = await client.http.post(f"{client.path}:cancelled", json={})
        assert (made.status_code, made.json()["id"]) == (200, f"{client.session}:cancelled")
        assert (await client.http.get(f"{client.path}:cancelled")).status_code == 200


@pytest.mark.parametrize(
    "params", [{"mode": "nicely"}, {"wait": -1}, {"grace": "nan"}, {"ifUnknown": "forget"}], ids=str
)
async def test_what_makes_no_sense_is_refused(server, params):
    async with Client(server, "quick_tool") as client:
        assert (await client.cancel(**params)).status_code == 422


async def test_another_users_session_and_run_are_out_of_reach(server):
    async with Client(server, "async_tool") as ann:
        async with asked(ann) as answer:
            await server.world.saw("enter async_tool")
            async with Client(server, "async_tool", session=ann.session, user="bob") as bob:
                assert (await bob.cancel(mode="immediate")).status_code == 404
                assert (await bob.cancel(mode="immediate", runId=ann.run_id)).status_code == 404
                assert (await bob.http.get(f"{bob.path}/stream")).status_code == 404
            server.world.release_all()
        assert "errorCode" not in answer.result()[-1]


async def test_a_stop_that_comes_while_the_agent_is_being_loaded_meets_its_run(server, monkeypatch):
    adk = server.adk
    loading, loaded = asyncio.Event(), asyncio.Event()
    loop, real = asyncio.get_running_loop(), adk.get_runner_async

    async def get_runner_async(app_name):
        loop.call_soon_threadsafe(loading.set)
        async with asyncio.timeout(DEADLINE):
            while not loaded.is_set():
                await asyncio.sleep(0.005)
        return await real(app_name)

    monkeypatch.setattr(adk, "get_runner_async", get_runner_async)
    async with Client(server, "async_tool") as client:
        async with asked(client) as answer:
            async with asyncio.timeout(DEADLINE):
                await loading.wait()
            response = await client.cancel()
            assert response.status_code == 200, response.text
            loaded.set()
        [final] = answer.result()
        assert (final["errorCode"], response.json()["runId"]) == ("INVOCATION_ABORTED", client.run_id)
        assert not server.world.notes, "something began"
        monkeypatch.undo()
        assert "hello again" in str(await client.say("again"))


async def test_a_stop_may_wait_for_the_next_run(server):
    async with Client(server, "quick_tool") as client:
        response = await client.cancel(ifUnknown="wait")
        assert (response.status_code, response.json()["status"]) == (202, "held")
        [final] = await client.say("go")
        assert final["errorCode"] == "INVOCATION_ABORTED"
        assert not server.world.notes, "something began"
        assert "all done" in str(await client.say("go"))


async def test_a_failing_run_fails_as_it_does_without_stoppable(server):
    async with Client(server, "async_tool") as client:
        body = client.body("go") | {"sessionId": "unknown"}
        for path in ("/run", "/run_sse"):
            response = await client.http.post(path, json=body)
            assert (response.status_code, "Session not found" in response.text) == (404, True)

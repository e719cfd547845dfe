"""Live runs: a stop ends the speech, tells the client so, and closes its socket in order."""

import asyncio
import contextlib
import json

import pytest
import websockets
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.agents.run_config import RunConfig
from google.adk.runners import InMemoryRunner
from google.genai import types

import stoppable
from stoppable.adapters.adk import wrap

from .serving import Client, served
from .world import DEADLINE, Loader, World


def socket(client):
    query = f"app_name=live&user_id={client.user}&session_id={client.session}&modalities=TEXT"
    return websockets.connect(f"{client.server.url.replace('http', 'ws')}/run_live?{query}", open_timeout=DEADLINE)


def message(text):
    return json.dumps({"content": {"role": "user", "parts": [{"text": text}]}})


async def rest(connection):
    """Return the frames that come until the socket is closed."""
    found = []
    async with asyncio.timeout(DEADLINE):
        try:
            while True:
                found.append(json.loads(await connection.recv()))
        except websockets.ConnectionClosed:
            return found


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_stop_tells_the_client_and_closes_its_socket(server, mode):
    world = server.world
    async with Client(server, "live") as client:
        async with socket(client) as connection:
            await connection.send(message("go"))
            await world.saw("enter speech")
            response = await client.cancel(mode=mode, grace=0.2, wait=20)  # it speaks on for all of the grace
            ticks = dict(world.ticks)
            assert (response.status_code, response.json()["status"]) == (200, "stopped"), response.text
            frames = await rest(connection)
        assert (frames[-1]["errorCode"], connection.close_code) == ("INVOCATION_ABORTED", 1000)
        assert world.ticks == ticks, "the model speaks on"
        world.seen("live closed")
        assert connection.response.headers["stoppable-run-id"] == response.json()["runId"]
        assert (await client.cancel()).status_code == 404
        events = await client.say("again")
        assert "hello again" in str(events)


@pytest.mark.parametrize("policy", ["keep", "stop"])
async def test_a_client_that_leaves_a_live_run_ends_it_with_any_policy(tmp_path, policy):
    with served(tmp_path, on_disconnect=policy) as server:
        async with Client(server, "live") as client:
            async with socket(client) as connection:
                await connection.send(message("go"))
                await server.world.saw("enter speech")
                run_id = connection.response.headers["stoppable-run-id"]
            record = await server.over(run_id)
            assert (record.status, record.outcome.reason.kind) == ("stopped", "disconnect")
            server.world.seen("live closed")
            assert "finish speech" not in server.world.notes, "it spoke on for nobody"
            assert "hello again" in str(await client.say("again"))


async def test_a_reader_that_closes_a_live_run_ends_it_with_any_policy():
    world = World()
    agent = Loader(world).load_agent("live")
    async with stoppable.Supervisor() as supervisor:
        runner = wrap(InMemoryRunner(agent=agent, app_name="app"), supervisor, on_disconnect="keep")
        await runner.session_service.create_session(app_name="app", user_id="ann", session_id="s")
        queue = LiveRequestQueue()
        queue.send_content(types.Content(role="user", parts=[types.Part(text="go")]))
        config = RunConfig(response_modalities=["TEXT"])
        events = runner.run_live(user_id="ann", session_id="s", live_request_queue=queue, run_config=config)
        async with contextlib.aclosing(events):
            async for _ in events:
                break
        world.seen("live closed")
        [run] = (await supervisor.list(stoppable.Filter(roots=True))).runs
        assert (await supervisor.handle(run.id).outcome()).status == "stopped"
        await runner.close()

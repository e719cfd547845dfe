"""Live runs: a stop ends the speech, tells the client so, and closes its socket in order."""

import asyncio
import json

import pytest
import websockets

from .serving import Client, served
from .world import DEADLINE


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


async def test_a_client_that_leaves_a_live_run_ends_it_with_the_policy_stop(tmp_path):
    with served(tmp_path, on_disconnect="stop") as server:
        async with Client(server, "live") as client:
            async with socket(client) as connection:
                await connection.send(message("go"))
                await server.world.saw("enter speech")
                run_id = connection.response.headers["stoppable-run-id"]
            async with asyncio.timeout(DEADLINE):
                while (await server.record(run_id)).status == "running":
                    await asyncio.sleep(0.01)
                server.world.release("speech")  # the stop is graceful
                while not (record := await server.record(run_id)).over:
                    await asyncio.sleep(0.01)
            assert (record.status, record.outcome.reason.kind) == ("stopped", "disconnect")
            server.world.seen("live closed")

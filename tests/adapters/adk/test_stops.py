"""A stop of what runs in a session, for every shape of an agent, on ADK's own server over a socket."""

import pytest

from .serving import Client, asked
from .world import names

# What a run of each shape does when it is stopped.
HELD = {
    "stream": "chunk 1",
    "async_tool": "async_tool",
    "sync_tool": "sync_tool",
    "thread_tool": "thread_tool",
    "agent_tool": "async_tool",
    "agent_tool_without_plugins": "async_tool",
    "sequence": "async_tool",
    "loop": "async_tool",
    "workflow": "async_tool",
}
SHAPES = [shape for shape in HELD if shape != "workflow" or names.WORKFLOW is not None]
THREADS = {"sync_tool", "thread_tool"}


def dangling(events):
    """Return the calls that have no answer."""
    parts = [part for event in events for part in event.get("content", {}).get("parts", [])]
    called = {part["functionCall"]["id"] for part in parts if "functionCall" in part}
    return called - {part["functionResponse"]["id"] for part in parts if "functionResponse" in part}


@pytest.mark.parametrize("path", ["/run_sse", "/run"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_an_immediate_stop_ends_the_run_and_the_next_turn_works(server, shape, path):
    if (shape, path) == ("stream", "/run"):
        pytest.skip("/run streams nothing")
    world = server.world
    async with Client(server, shape) as client:
        async with asked(client, path=path) as answer:
            await world.saw(f"enter {HELD[shape]}")
            response = await client.cancel(mode="immediate")
            assert response.status_code == 200, response.text
            receipt = response.json()["receipt"]
        ticks = dict(world.ticks)
        final = answer.result()[-1]
        assert final["errorCode"] == "INVOCATION_ABORTED"
        assert not dangling(await client.events())
        if shape not in THREADS:
            assert world.ticks == ticks, "it works on after the answer"
        world.release_all()
        told = await client.cancel(runId=client.run_id, wait=20)
        assert told.json()["status"] == "stopped"
        nodes = told.json()["receipt"]["entries"]
        assert receipt["inFlight"], "nothing was listed"
        assert {node["fate"] for node in nodes} <= {"cancelled", "closed", "finished", "stopped"}, nodes
        await works_again(client)


async def works_again(client):
    """Assert that the session takes another turn, in which nobody sees a broken history."""
    events = await client.say("again")
    assert not any("errorCode" in event or "error" in event for event in events), events
    if client.shape != "workflow":
        assert "hello again" in str(events)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_graceful_stop_lets_the_call_in_flight_finish_and_keeps_its_answer(server, shape):
    world = server.world
    async with Client(server, shape) as client:
        async with asked(client) as answer:
            await world.saw(f"enter {HELD[shape]}")
            before = [note for note in world.notes if note.startswith("model")]
            response = await client.cancel()
            assert response.status_code == 200, response.text
            assert not answer.done()
            world.release_all()
        assert answer.result()[-1]["errorCode"] == "INVOCATION_ABORTED"
        after = [note for note in world.notes if note.startswith("model")]
        assert after == before, "a model was called after the stop"
        assert "second node" not in world.notes
        events = await client.events()
        assert not dangling(events)
        if shape == "stream":
            assert "part0 part1 " in str(events), "the text that was streamed is kept"
        elif "agent_tool" not in shape and shape != "workflow":
            assert f"{HELD[shape]} done" in str(events), "the answer of the tool is kept"
        told = (await client.cancel(runId=client.run_id, wait=20)).json()
        assert told["status"] == "stopped"
        assert told["receipt"]["enteredAfter"] == []
        assert (await server.record(client.run_id)).outcome.rung == "signal", "it ended by force"
        await works_again(client)

"""A guarded call of the openai client is one boundary in the log of its run, however the client makes it."""

from __future__ import annotations

import pytest

pytest.importorskip("openai")

import openai

import stoppable
from stoppable._engine.guard import guard
from stoppable.records import EventType
from stoppable.testing.model_server import Failure

CREATE = "chat.completions.create"
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "count"}]}


@pytest.fixture
def client(scene, closing):
    return guard(closing(openai.AsyncOpenAI(base_url=scene.server.url, api_key="key", max_retries=2)), "llm", CREATE)


@pytest.fixture
def blocking_client(scene, closing):
    return guard(closing(openai.OpenAI(base_url=scene.server.url, api_key="key", max_retries=2)), "llm", CREATE)


async def reported(agent):
    """Run an agent and return what its log has of its model calls; the client may also start a thread."""
    async with stoppable.Supervisor() as supervisor:
        handle = await supervisor.start(agent)
        await handle.outcome()
        return [
            (event.type, event.data["kind"], event.data["name"])
            async for event in supervisor.events(handle.id)
            if event.type in {EventType.ENTERED, EventType.LEFT} and event.data["kind"] == "llm"
        ]


ONCE = [(EventType.ENTERED, "llm", CREATE), (EventType.LEFT, "llm", CREATE)]


@pytest.mark.parametrize("turns", [(), (Failure(500, "again"), Failure(429, "again"))], ids=["at once", "retried"])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_a_call_of_the_async_client_is_reported_once(scene, client, turns, is_streamed):
    async def agent():
        answer = await client.chat.completions.create(**ASK, stream=is_streamed)
        if is_streamed:
            return [chunk async for chunk in answer]
        return None

    scene.server.script(*turns)
    assert await reported(agent) == ONCE
    assert sum(connection.requests for connection in scene.server.connections) == len(turns) + 1


@pytest.mark.parametrize("turns", [(), (Failure(500, "again"), Failure(429, "again"))], ids=["at once", "retried"])
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_a_call_of_the_blocking_client_is_reported_once(scene, blocking_client, turns, is_streamed):
    def agent():
        answer = blocking_client.chat.completions.create(**ASK, stream=is_streamed)
        if is_streamed:
            list(answer)

    scene.server.script(*turns)
    assert await reported(agent) == ONCE
    assert sum(connection.requests for connection in scene.server.connections) == len(turns) + 1


async def test_a_call_that_fails_in_the_end_is_reported_once(scene, client):
    async def agent():
        with pytest.raises(openai.APIStatusError):
            await client.chat.completions.create(**ASK)

    scene.server.script(*[Failure(500, "down")] * 3)
    assert await reported(agent) == ONCE


async def test_a_call_with_wrong_arguments_is_reported_once(client):
    async def agent():
        with pytest.raises(TypeError, match="Missing required arguments"):
            client.chat.completions.create(model="scripted")

    assert await reported(agent) == ONCE

"""Stops through httpx: plain calls finish, streams stop between lines, the pool stays in order."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("httpx")

import httpx

import stoppable
from stoppable._engine.guard import guard
from stoppable._engine.streams import stream
from stoppable.testing.model_server import Ending

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "count"}]}
PATH = "/chat/completions"


@pytest.fixture
def client(scene, closing):
    return guard(closing(httpx.AsyncClient(base_url=scene.server.url, timeout=30)), "llm", "post")


@pytest.fixture
def blocking_client(scene, closing):
    return guard(closing(httpx.Client(base_url=scene.server.url, timeout=30)), "llm", "post")


def token(line):
    """Return the token in a line of a stream, if there is one."""
    if not line.startswith("data: {"):
        return None
    return json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content")


def content(response):
    return response.json()["choices"][0]["message"]["content"]


def calling(scene, client):
    async def agent():
        while True:
            scene.keep(content(await client.post(PATH, json=ASK)))

    return agent


def streaming(scene, client):
    async def agent():
        async with client.stream("POST", PATH, json=ASK | {"stream": True}) as response:
            async for line in stream(response.aiter_lines()):
                scene.keep(token(line))

    return agent


def blocking_calling(scene, client):
    def agent():
        while True:
            scene.keep(content(client.post(PATH, json=ASK)))

    return agent


def blocking_streaming(scene, client):
    def agent():
        with client.stream("POST", PATH, json=ASK | {"stream": True}) as response:
            for line in stream(response.iter_lines()):
                scene.keep(token(line))

    return agent


@pytest.fixture(params=["task", "thread"])
def agents(request, scene):
    """Return an agent that makes plain calls and one that reads a stream."""
    if request.param == "task":
        client = request.getfixturevalue("client")
        return calling(scene, client), streaming(scene, client)
    client = request.getfixturevalue("blocking_client")
    return blocking_calling(scene, client), blocking_streaming(scene, client)


async def test_a_plain_call_in_flight_finishes_and_no_other_is_made(scene, agents):
    scene.expect("one two")
    handle = await stoppable.spawn(agents[0])
    await scene.server.wait_for_request_async()
    receipt = await scene.stop(handle)
    scene.open()
    outcome = await scene.outcome(handle)
    assert (outcome.status, outcome.rung, outcome.partial) == ("stopped", "signal", "one two")
    assert receipt.in_flight == ("llm:post",)
    assert [(c.requests, c.answers, c.ending) for c in scene.server.connections] == [(1, 1, None)]


async def test_a_stream_stops_between_lines_and_is_closed_in_order(scene, agents):
    scene.expect("one two three four")
    handle = await stoppable.spawn(agents[1])
    scene.release(2)
    await scene.until_received(2)
    receipt = await scene.stop(handle)
    scene.release(1)
    outcome = await scene.outcome(handle)
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "signal", True)
    # A token is a line and an empty line: the stop may land after either, and the next token is not waited for.
    assert outcome.partial in {"one two", "one two three"}
    assert receipt.in_flight == ("llm:stream",)
    assert scene.server.tokens_after_stop <= 1
    assert await scene.server.wait_for_closed_async() == [Ending.MID_ANSWER]


@pytest.mark.parametrize("options", [{"mode": "immediate"}, {"grace": 0}], ids=["immediate", "interrupt"])
async def test_a_task_whose_next_line_never_comes_is_ended_and_the_client_stays_usable(scene, client, options):
    scene.expect("one two")
    handle = await stoppable.spawn(streaming(scene, client))
    scene.release(1)
    await scene.until_received(1)
    await scene.stop(handle, **options)
    outcome = await scene.outcome(handle)
    assert (outcome.status, outcome.clean, outcome.partial) == ("stopped", True, "one")
    assert outcome.rung == "interrupt" or "mode" in options  # INTERRUPT and CANCEL are due at once
    assert await scene.server.wait_for_closed_async() == [Ending.MID_ANSWER]
    assert content(await client.post(PATH, json=ASK)) == "ok"


async def test_of_fifty_runs_on_a_pool_of_five_half_are_stopped_and_the_pool_serves_the_rest(scene, closing):
    runs, half = 50, 25
    limits, timeout = httpx.Limits(max_connections=5), httpx.Timeout(30)
    client = closing(httpx.AsyncClient(base_url=scene.server.url, limits=limits, timeout=timeout))
    handles = [await stoppable.spawn(streaming(scene, client)) for _ in range(runs)]
    await scene.server.wait_for_request_async()
    for handle in handles[::2]:
        await handle.stop()
    outcomes = [await scene.outcome(handle) for handle in handles]
    assert [outcome.status for outcome in outcomes[1::2]] == ["completed"] * half
    assert {outcome.partial for outcome in outcomes[1::2]} == {"ok"}
    assert {outcome.status for outcome in outcomes[::2]} <= {"stopped", "completed"}
    answers = await asyncio.gather(*(client.post(PATH, json=ASK) for _ in range(runs)))
    assert [content(answer) for answer in answers] == ["ok"] * runs

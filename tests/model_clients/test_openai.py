"""Stops through the openai client: plain calls finish, streams stop between chunks, the pool stays in order."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx")

import httpx
import openai

import stoppable
from stoppable._engine.guard import guard
from stoppable._engine.streams import stream
from stoppable.testing.model_server import Ending, Failure, Reply

CREATE = "chat.completions.create"
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "count"}]}


@pytest.fixture
def client(scene, closing):
    return guard(closing(openai.AsyncOpenAI(base_url=scene.server.url, api_key="key", max_retries=0)), "llm", CREATE)


@pytest.fixture
def blocking_client(scene, closing):
    return guard(closing(openai.OpenAI(base_url=scene.server.url, api_key="key", max_retries=0)), "llm", CREATE)


@pytest.fixture(params=["task", "thread"])
def chat(request, scene):
    """Return agents that ask the model again and again, whole answers or streams, in a task or on a thread."""
    if request.param == "task":
        return AsyncChat(scene, request.getfixturevalue("client"))
    return BlockingChat(scene, request.getfixturevalue("blocking_client"))


class AsyncChat:
    def __init__(self, scene, client):
        self.scene = scene
        self.client = client

    async def call(self):
        while True:
            answer = await self.client.chat.completions.create(**ASK)
            self.scene.keep(answer.choices[0].message.content)

    async def stream(self):
        while True:
            async for chunk in await self.client.chat.completions.create(**ASK, stream=True):
                self.scene.keep(chunk.choices[0].delta.content)

    async def helper(self):
        async with self.client.chat.completions.stream(**ASK) as events:
            async for event in events:
                self.scene.keep(event.delta if event.type == "content.delta" else None)

    async def ask(self):
        return (await self.client.chat.completions.create(**ASK)).choices[0].message.content


class BlockingChat:
    def __init__(self, scene, client):
        self.scene = scene
        self.client = client

    def call(self):
        while True:
            answer = self.client.chat.completions.create(**ASK)
            self.scene.keep(answer.choices[0].message.content)

    def stream(self):
        while True:
            for chunk in self.client.chat.completions.create(**ASK, stream=True):
                self.scene.keep(chunk.choices[0].delta.content)

    def helper(self):
        with self.client.chat.completions.stream(**ASK) as events:
            for event in events:
                self.scene.keep(event.delta if event.type == "content.delta" else None)

    async def ask(self):
        answer = await asyncio.to_thread(self.client.chat.completions.create, **ASK)
        return answer.choices[0].message.content


async def test_a_plain_call_in_flight_finishes_and_no_other_is_made(scene, chat, fates):
    scene.expect("one two three")
    handle = await stoppable.spawn(chat.call)
    await scene.server.wait_for_request_async()
    receipt = await scene.stop(handle)
    scene.open()
    outcome = await scene.outcome(handle)
    assert (outcome.status, outcome.rung, outcome.partial) == ("stopped", "signal", "one two three")
    assert receipt.in_flight == (f"llm:{CREATE}",)
    assert fates(handle) == [(CREATE, "finished")]
    assert await chat.ask() == "ok"
    # The second request came over the same connection: it went back to the pool in order.
    assert [(c.requests, c.answers, c.ending) for c in scene.server.connections] == [(2, 2, None)]


async def test_a_stream_stops_between_chunks_and_is_closed_in_order(scene, chat, fates):
    scene.expect("one two three four five")
    handle = await stoppable.spawn(chat.stream)
    scene.release(2)
    await scene.until_received(2)
    receipt = await scene.stop(handle)
    assert handle.status == "stopping"
    scene.release(1)
    outcome = await scene.outcome(handle)
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "signal", True)
    assert (outcome.partial, scene.server.tokens_after_stop) == ("one two three", 1)
    assert receipt.in_flight == (f"llm:{CREATE}",)
    assert fates(handle) == [(CREATE, "closed")]
    assert await scene.server.wait_for_closed_async() == [Ending.MID_ANSWER]
    assert await chat.ask() == "ok"


async def test_the_clients_own_stream_helper_stops_as_well(scene, chat):
    scene.expect("one two three")
    handle = await stoppable.spawn(chat.helper)
    scene.release(1)
    await scene.until_received(1)
    await scene.stop(handle)
    scene.release(1)
    outcome = await scene.outcome(handle)
    assert (outcome.status, outcome.partial) == ("stopped", "one two")
    assert await scene.server.wait_for_closed_async() == [Ending.MID_ANSWER]


@pytest.mark.parametrize("options", [{"mode": "immediate"}, {"grace": 0}], ids=["immediate", "interrupt"])
async def test_a_stream_whose_next_token_never_comes_is_ended_and_the_client_stays_usable(scene, chat, options):
    scene.expect("one two three")
    handle = await stoppable.spawn(chat.stream)
    scene.release(2)
    await scene.until_received(2)
    await scene.stop(handle, **options)
    outcome = await scene.outcome(handle)
    assert (outcome.status, outcome.partial) == ("stopped", "one two")
    if "grace" in options:
        assert (outcome.rung, outcome.clean) == ("interrupt", True)
    assert await scene.server.wait_for_closed_async() == [Ending.MID_ANSWER]
    assert scene.server.tokens_after_stop == 0
    assert [await chat.ask() for _ in range(3)] == ["ok", "ok", "ok"]


async def test_an_immediate_stop_ends_a_plain_call_in_a_task(scene, client, fates):
    scene.expect("never")
    handle = await stoppable.spawn(AsyncChat(scene, client).call)
    await scene.server.wait_for_request_async()
    await scene.stop(handle, "immediate")
    assert (await scene.outcome(handle)).status == "stopped"
    assert fates(handle) == [(CREATE, "cancelled")]
    assert await scene.server.wait_for_closed_async() == [Ending.MID_ANSWER]
    assert await AsyncChat(scene, client).ask() == "ok"


async def test_finish_lets_a_stream_run_to_its_end(scene, client):
    async def agent():
        chunks = await client.chat.completions.create(**ASK, stream=True)
        async for chunk in stream(chunks, finish=True):
            scene.keep(chunk.choices[0].delta.content)

    scene.expect("one two three")
    handle = await stoppable.spawn(agent)
    scene.release(1)
    await scene.until_received(1)
    await scene.stop(handle)
    scene.open()
    assert (await scene.outcome(handle)).partial == "one two three"
    assert (handle.status, scene.server.tokens_after_stop) == ("completed", 2)
    assert [connection.answers for connection in scene.server.connections] == [1]


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_of_fifty_runs_on_one_client_half_are_stopped_and_the_pool_serves_the_rest(scene, closing, mode):
    runs, half = 50, 25
    limits = type(openai.DEFAULT_CONNECTION_LIMITS)(max_connections=runs)  # of httpx, or of httpx2 since openai 3
    http_client = openai.DefaultAsyncHttpxClient(limits=limits)
    client = openai.AsyncOpenAI(base_url=scene.server.url, api_key="key", max_retries=0, http_client=http_client)
    guard(closing(client), "llm", CREATE)

    async def agent():
        async for chunk in await client.chat.completions.create(**ASK, stream=True):
            scene.keep(chunk.choices[0].delta.content)

    scene.expect(*["one two three"] * runs)
    handles = [await stoppable.spawn(agent) for _ in range(runs)]
    scene.release(1)
    await scene.until_received(runs)
    for handle in handles[:half]:
        await scene.stop(handle, mode)
    if mode == "graceful":
        scene.release(1)  # it lands when the next token arrives
    stopped = [await scene.outcome(handle) for handle in handles[:half]]
    assert await scene.server.wait_for_closed_async(half) == [Ending.MID_ANSWER] * half
    scene.open()
    outcomes = stopped + [await scene.outcome(handle) for handle in handles[half:]]
    assert [outcome.status for outcome in outcomes] == ["stopped"] * half + ["completed"] * half
    assert {outcome.partial for outcome in outcomes[half:]} == {"one two three"}
    assert all(outcome.clean for outcome in outcomes)
    answers = await asyncio.gather(*(AsyncChat(scene, client).ask() for _ in range(runs)))
    assert answers == ["ok"] * runs
    later = (await scene.server.wait_for_closed_async(half))[half:]
    assert set(later) <= {Ending.AFTER_ANSWER}, "nobody else's connection was broken"


@pytest.mark.parametrize("rate", [10, 1000])
async def test_a_stream_that_would_go_on_for_an_hour_is_closed_while_it_runs(scene, chat, rate):
    """How soon is a matter of the machine; that the next token is the last is shown with pauses above."""
    scene.server.script(Reply(["token "] * 3600 * rate, rate=rate))
    handle = await stoppable.spawn(chat.stream)
    await scene.until_received(3)
    await scene.stop(handle)
    outcome = await scene.outcome(handle)
    assert (outcome.status, outcome.rung) == ("stopped", "signal")
    assert await scene.server.wait_for_closed_async() in ([Ending.MID_ANSWER], [Ending.RESET])  # unread tokens reset it


async def test_errors_of_the_provider_reach_the_agent_unchanged(scene, client):
    async def agent():
        with pytest.raises(openai.RateLimitError, match="slow down"):
            await client.chat.completions.create(**ASK)
        with pytest.raises((openai.APIConnectionError, httpx.TransportError)):  # the latter before openai 3
            async for chunk in await client.chat.completions.create(**ASK, stream=True):
                scene.keep(chunk.choices[0].delta.content)
        return "went on"

    scene.server.script(Failure(429, "slow down"))
    scene.expect("one two", drop_after=1)
    handle = await stoppable.spawn(agent)
    scene.release(1)
    await scene.until_received(1)
    scene.open()
    outcome = await scene.outcome(handle)
    assert (outcome.status, outcome.result, outcome.partial) == ("completed", "went on", "one")


async def test_a_guarded_stream_is_an_openai_stream(scene, client, blocking_client):
    async def agent():
        async with await client.chat.completions.create(**ASK, stream=True) as chunks:
            assert isinstance(chunks, openai.AsyncStream)
            assert chunks.response.status_code == 200
        with blocking_client.chat.completions.create(**ASK, stream=True) as chunks:
            assert isinstance(chunks, openai.Stream)
            return [chunk.choices[0].delta.content for chunk in chunks]

    assert await (await stoppable.spawn(agent)).result() == ["", "ok", None]


async def test_a_copy_made_with_options_is_not_guarded_until_it_is(scene, client):
    async with stoppable.open_run("work", limits=stoppable.Limits(boundaries={"llm": 1})):
        copied = client.with_options(max_retries=0)
        for _ in range(3):
            await copied.chat.completions.create(**ASK)
        assert "create" in vars(guard(copied, "llm", CREATE).chat.completions)
        await copied.chat.completions.create(**ASK)

"""Event streams in the format of somebody's app, under plain uvicorn and under our own server."""

import asyncio
import contextlib
import threading

import httpx
import pytest
import uvicorn
from fastapi import APIRouter, FastAPI, Header
from tests.waiting import until

import stoppable
from stoppable import EventType, Supervisor
from stoppable.server import EventEncoder, EventStreams, Message, ServerLimits, create_app

from .serving import DEADLINE, parsed


class Chat(EventEncoder):
    """Shows what the agents of a chat say, and nothing of what we note besides."""

    def first(self, record):
        return Message("hello", {"id": record.id})

    def event(self, event):
        if event.type is not EventType.PROGRESS:
            return None
        return Message("said", event.data["data"])

    def last(self, record):
        return Message("bye", {"status": record.status, "result": record.outcome.result})


class Conversation:
    """An agent that says what a test tells it to, with a sub-agent that speaks once."""

    def __init__(self):
        self.go_on = threading.Event()

    async def child(self):
        stoppable.emit("say", text="I help")

    async def agent(self):
        stoppable.emit("say", text="one\u2028line")
        await stoppable.call(self.child)
        while not self.go_on.is_set():
            await stoppable.sleep(0.002)
        return "done"


@pytest.fixture
def conversation():
    made = Conversation()
    yield made
    made.go_on.set()


class App:
    def __init__(self, supervisor, url):
        self.supervisor, self.url = supervisor, url
        self.streams = None

    @contextlib.asynccontextmanager
    async def stream(self, run_id, **options):
        async with httpx.AsyncClient(base_url=self.url, timeout=DEADLINE) as client:
            async with client.stream("GET", f"/chat/{run_id}", **options) as response:
                yield response

    async def messages(self, run_id, **options):
        async with self.stream(run_id, **options) as response:
            return [message async for message in parsed(response.aiter_lines())]


def routes_of(app, encoder=Chat):
    made = APIRouter()

    @made.get("/chat/{run_id}")
    async def chat(run_id: str, tree: bool = False, owner: str | None = None, last_event_id: int = Header(0)):
        try:
            return await app.streams.follow(run_id, encoder(), after=last_event_id, tree=tree, owner=owner)
        except stoppable.RunNotFound:
            return {"found": False}

    return made


@contextlib.asynccontextmanager
async def serving(kind, limits=None, encoder=Chat):
    """Serve streams on the loop of the test, in an app of somebody's own or in one of ours."""
    async with Supervisor() as supervisor:
        app = App(supervisor, None)
        app.streams = EventStreams(supervisor, limits)
        if kind == "own":
            asgi = create_app(supervisor, routers=[routes_of(app, encoder)])
        else:
            asgi = FastAPI()
            asgi.include_router(routes_of(app, encoder))
        server = uvicorn.Server(uvicorn.Config(asgi, port=0, log_level="warning", lifespan="off"))
        task = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        app.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield app
        finally:
            app.streams.drain()
            server.should_exit = True
            await task
            app.streams.close()


@pytest.fixture(params=["own", "somebody's"])
def kind(request):
    return request.param


async def test_a_stream_begins_goes_on_and_ends_as_the_app_wants_it(kind, conversation):
    async with serving(kind) as app:
        handle = await app.supervisor.start(conversation.agent)
        async with app.stream(handle.id) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            messages = parsed(response.aiter_lines())
            assert await anext(messages) == {"event": "hello", "data": {"id": handle.id}}
            said = await anext(messages)
            assert (said["event"], said["data"]) == ("said", {"text": "one\u2028line"})
            conversation.go_on.set()
            bye = await anext(messages)
            assert (bye["event"], bye["data"]) == ("bye", {"status": "completed", "result": "done"})
            assert [message async for message in messages] == []


async def test_a_tree_is_one_stream_and_each_reader_resumes_where_it_was(kind, conversation):
    async with serving(kind) as app:
        conversation.go_on.set()
        handle = await app.supervisor.start(conversation.agent)
        await handle.outcome()
        found = await app.messages(handle.id, params={"tree": True})
        assert [message["event"] for message in found] == ["hello", "said", "said", "bye"]
        assert found[2]["data"] == {"text": "I help"}
        for number in (1, 2):
            rest = await app.messages(handle.id, params={"tree": True}, headers={"Last-Event-ID": found[number]["id"]})
            assert rest == [found[0], *found[number + 1 :]]
        for params in ({"tree": True}, {}):
            last = (await app.messages(handle.id, params=params))[-1]["id"]
            async with app.stream(handle.id, params=params, headers={"Last-Event-ID": last}) as response:
                assert response.status_code == 204
            assert await app.messages(handle.id, params=params, headers={"Last-Event-ID": "0"})


async def test_a_run_of_somebody_else_is_not_found(kind, conversation):
    async with serving(kind) as app:
        conversation.go_on.set()
        handle = await app.supervisor.start(conversation.agent, owner="ann")
        await handle.outcome()
        for run_id, owner in ((handle.id, "bob"), ("nobody", "ann")):
            async with app.stream(run_id, params={"owner": owner}) as response:
                assert await response.aread() == b'{"found":false}'
        assert len(await app.messages(handle.id, params={"owner": "ann"})) == 3


async def test_a_stream_of_events_that_nobody_is_shown_still_has_a_heartbeat(kind, conversation):
    limits = ServerLimits(heartbeat=0.01)
    async with serving(kind, limits) as app:
        handle = await app.supervisor.start(conversation.agent)
        async with app.stream(handle.id) as response:
            async with asyncio.timeout(DEADLINE):
                async for line in response.aiter_lines():
                    if line == ":":
                        break
        await until(lambda: len(app.streams) == 0)


async def test_one_stream_too_many_is_refused(kind, conversation):
    async with serving(kind, ServerLimits(streams=1)) as app:
        handle = await app.supervisor.start(conversation.agent)
        async with app.stream(handle.id) as first:
            await anext(parsed(first.aiter_lines()))
            async with app.stream(handle.id) as second:
                assert second.status_code == 429


async def test_leaving_a_stream_stops_only_a_run_that_asked_for_it(kind, conversation):
    async with serving(kind, ServerLimits(disconnect_grace=0)) as app:
        kept = await app.supervisor.start(conversation.agent)
        owned = await app.supervisor.start(conversation.agent, on_disconnect="stop")
        for handle in (kept, owned):
            async with app.stream(handle.id, params={"tree": True}) as response:
                await anext(parsed(response.aiter_lines()))
        outcome = await owned.outcome()
        assert (outcome.status, outcome.reason.kind) == ("stopped", "disconnect")
        assert not (await app.supervisor.get(kept.id)).over


async def test_a_server_that_shuts_down_says_where_to_go_on(kind, conversation):
    async with serving(kind) as app:
        handle = await app.supervisor.start(conversation.agent)
        async with app.stream(handle.id) as response:
            messages = parsed(response.aiter_lines())
            await anext(messages)
            await anext(messages)
            app.streams.drain()
            last = await anext(messages)
            assert last["event"] == "shutdown"
            assert last["data"]["after"] >= 1


async def test_many_large_messages_come_in_pieces_and_a_silent_end_is_an_end(kind):
    class Quiet(Chat):
        def first(self, record):
            return None

        def last(self, record):
            return None

    async def loud():
        for number in range(500):
            stoppable.emit("say", number=number, text="x" * 2000)

    async with serving(kind, encoder=Quiet) as app:
        handle = await app.supervisor.start(loud)
        await handle.outcome()
        found = await app.messages(handle.id)
        assert [message["data"]["number"] for message in found] == list(range(500))

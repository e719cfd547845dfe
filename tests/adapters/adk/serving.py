"""ADK's own server on a socket, with stoppable installed, and a client that sees every frame."""

import asyncio
import contextlib
import itertools
import json
import threading
import warnings

import httpx
import uvicorn
from google.adk.cli.fast_api import get_fast_api_app

import stoppable
from stoppable.adapters.adk import install

from .world import DEADLINE, Loader, World, names


class Server:
    """A server on a thread of this process."""

    def __init__(self, app, world, supervisor):
        self.app, self.world, self.supervisor = app, world, supervisor
        self.adk = names.server_of(app)
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=5))
        self._thread = threading.Thread(target=self._server.run, name="adk server")

    def start(self):
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server did not start"
            self._thread.join(0.005)

    def stop(self):
        self._server.should_exit = True
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the server did not end"

    @property
    def url(self):
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    # What the supervisor knows, which may be asked from any loop.

    async def record(self, run_id):
        return await self.supervisor.get(run_id)

    async def over(self, run_id):
        """Wait for the end of a run, and return its record."""
        async with asyncio.timeout(DEADLINE):
            while not (record := await self.record(run_id)).over:
                await asyncio.sleep(0.01)
        return record

    async def runs(self, client):
        """Return the runs of a session, without their children."""
        return await self.supervisor.list(stoppable.Filter(labels={"adk.session": client.session}, roots=True))

    async def live(self):
        """Return the ids of all runs that have not ended."""
        return [record.id for record in (await self.supervisor.list(stoppable.Filter(status=LIVE))).runs]


LIVE = frozenset({stoppable.Status.PENDING, stoppable.Status.RUNNING, stoppable.Status.STOPPING})


@contextlib.contextmanager
def served(tmp_path, *, plain=False, web=False, sessions="memory://", store=None, **options):
    """Serve agents of every shape on a free port until the block is left."""
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        app = get_fast_api_app(
            agents_dir=str(tmp_path), agent_loader=Loader(world), session_service_uri=sessions, web=web
        )
        supervisor = None if plain else install(app, store and stoppable.Supervisor(store), **options)
    server = Server(app, world, supervisor)
    server.start()
    try:
        yield server
    finally:
        world.release_all()
        server.stop()


_numbers = itertools.count(1)


class Client:
    """A user of one session."""

    def __init__(self, server, shape, session=None, user="ann"):
        session = session or f"s{next(_numbers)}"
        self.server, self.shape, self.session, self.user = server, shape, session, user
        self.http = httpx.AsyncClient(base_url=server.url, timeout=DEADLINE, verify=False)  # certificates load slowly
        self.path = f"/apps/{shape}/users/{user}/sessions/{session}"
        self.run_id = None

    async def __aenter__(self):
        await self.http.__aenter__()
        response = await self.http.post(self.path.rpartition("/")[0], json={"sessionId": self.session})
        assert response.status_code in {200, 409}, response.text
        return self

    async def __aexit__(self, *error):
        await self.http.__aexit__(*error)

    def body(self, text, **more):
        message = {"role": "user", "parts": [{"text": text}]}
        names = {"appName": self.shape, "userId": self.user, "sessionId": self.session}
        return {**names, "newMessage": message, "streaming": True, **more}

    async def say(self, text, path="/run_sse", **more):
        """Ask, and return the events that come until the end."""
        if path == "/run":
            response = await self.http.post(path, json=self.body(text, **more))
            assert response.status_code == 200, response.text
            self.run_id = response.headers.get("stoppable-run-id")
            return response.json()
        return [event async for event in self.stream(text, **more)]

    async def stream(self, text, **more):
        async with self.http.stream("POST", "/run_sse", json=self.body(text, **more)) as response:
            assert response.status_code == 200, await response.aread()
            self.run_id = response.headers.get("stoppable-run-id")
            async for event in frames(response):
                yield event

    async def cancel(self, **params):
        return await self.http.post(f"{self.path}:cancel", params=params)

    async def events(self):
        """Return what is in the session."""
        return (await self.http.get(self.path)).json()["events"]


async def frames(response):
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
        else:
            assert not line, f"not a frame of ADK: {line}"


@contextlib.asynccontextmanager
async def asked(client, text="go", path="/run_sse", **more):
    """Ask, go on with the block, and wait at its end for the answer, which is in ``.result()`` then."""
    task = asyncio.create_task(client.say(text, path, **more))
    try:
        yield task
        async with asyncio.timeout(DEADLINE):
            await asyncio.wait([task])
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])

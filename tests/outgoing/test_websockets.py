"""Messages of websockets as boundaries: of the package websockets, and of aiohttp."""

import asyncio
import threading

import aiohttp
import pytest
import websockets.asyncio.client
import websockets.asyncio.server
import websockets.sync.client
from tests.waiting import until

import stoppable


class Echo:
    """A server in a thread: it answers every message but ``hang``."""

    def __enter__(self):
        self.received = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_error):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self):
        self._end = asyncio.Event()
        async with websockets.asyncio.server.serve(self._answer, "127.0.0.1", 0) as server:
            self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/realtime"
            self._ready.set()
            await self._end.wait()

    async def _answer(self, connection):
        async for message in connection:
            self.received.append(message)
            if message != "hang":
                await connection.send(message)


@pytest.fixture
def echo():
    with stoppable.detached(), Echo() as echo:
        yield echo


def by_thread(url, first, second):
    with websockets.sync.client.connect(url) as connection:
        for message in (first, second):
            connection.send(message)
            connection.recv()


async def by_task(url, first, second):
    async with websockets.asyncio.client.connect(url) as connection:
        for message in (first, second):
            await connection.send(message)
            await connection.recv()


async def by_aiohttp(url, first, second):
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as connection:
        for message in (first, second):
            await connection.send_str(message)
            await connection.receive()


every_client = pytest.mark.parametrize("talk", [by_thread, by_task, by_aiohttp])


def agent_of(talk, *args):
    if asyncio.iscoroutinefunction(talk):

        async def agent():
            await talk(*args)

        return agent
    return lambda: talk(*args)


@every_client
async def test_without_a_stop_nothing_changes(echo, talk):
    outcome = await (await stoppable.spawn(agent_of(talk, echo.url, "a", "b"))).outcome()
    assert (outcome.status, echo.received) == ("completed", ["a", "b"])


@every_client
async def test_a_stopped_run_sends_no_further_message(echo, talk):
    handle = await stoppable.spawn(agent_of(talk, echo.url, "hang", "never"))
    await until(lambda: echo.received and handle.run.in_flight)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight[0].startswith("llm:WS 127.0.0.1")
    outcome = await handle.outcome()
    assert (outcome.status, echo.received) == ("stopped", ["hang"])

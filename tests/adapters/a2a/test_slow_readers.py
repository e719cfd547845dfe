"""Clients that open a stream and read nothing of it: what is kept for them is bounded, and nobody waits for them."""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
from pathlib import Path

import pytest
from a2a.server.context import ServerCallContext
from a2a.types import CancelTaskRequest, ListTasksRequest, Part, Task, TaskArtifactUpdateEvent

import stoppable
from stoppable.adapters.a2a.handler import read_ahead

from ...waiting import until
from .executors import Scripted
from .serving import PATIENT, SECONDS, message, served, state_of
from .test_serve import client_of, exposed

CHUNKS, CHUNK = 400, "x" * 3_000
MOST_BYTES = 100_000_000  # each event that the SDK keeps for a reader has a copy of the whole task: 400 of 0.6 MB


@stoppable.agent
async def talker(text: str):
    """Say a lot, then wait."""
    for _ in range(CHUNKS):
        stoppable.append_partial(CHUNK)
    stoppable.emit("said")
    await stoppable.sleep(600)


def resident():
    """Return how much memory this process has, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def deaf_client(url, path, body):
    """Send a request and never read a byte of its response."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", f"Host: {host}:{port}", "Content-Type: application/json", "A2A-Version: 1.0"]
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with made:
        made.connect((host, int(port)))
        made.sendall("\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data)
        yield


SENT = {"message": {"messageId": "deaf", "role": "ROLE_USER", "parts": [{"text": "go"}]}}


@pytest.mark.parametrize("binding", ["JSON-RPC", "REST"])
async def test_a_stream_that_nobody_reads_keeps_little_and_its_task_can_be_canceled(binding):
    request = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": SENT}
    path, body = ("/", request) if binding == "JSON-RPC" else ("/message:stream", SENT)
    async with exposed(talker, send_buffer=4096) as url, client_of(url) as client:
        before = resident()
        with deaf_client(url, path, body):
            task = await said_everything(client)
            grown = resident() - before
            async with asyncio.timeout(SECONDS):
                assert state_of(await client.cancel_task(CancelTaskRequest(id=task.id))) == "CANCELED"
        assert grown < MOST_BYTES, f"{grown:,} bytes"


class Chunks(Scripted):
    """Publishes its answer in pieces, and works on."""

    async def work(self, context, updater):
        for number in range(5):
            await updater.add_artifact([Part(text=str(number))], "answer", append=number > 0)
        self.effects += 1
        await self.go.wait()


@pytest.mark.parametrize("mode", ["graceful", "immediate", "kill"])
async def test_a_slow_reader_gets_all_that_was_published_before_the_cancel_and_then_its_end(mode):
    inner = Chunks()
    policy = dataclasses.replace(PATIENT, grace=0.0)
    async with stoppable.Supervisor() as supervisor, served(inner, supervisor, policy=policy) as server:
        events = server.handler.on_message_send_stream(message(), ServerCallContext())
        task = await anext(events)
        await until(lambda: inner.effects, SECONDS)
        assert state_of(await server.cancel(task.id, stoppable={"mode": mode})) == "CANCELED"
        async with asyncio.timeout(SECONDS):
            rest = [event async for event in events]
        texts = [event.artifact.parts[0].text for event in rest if isinstance(event, TaskArtifactUpdateEvent)]
        assert texts == ["0", "1", "2", "3", "4"]
        assert state_of(rest[-1]) == "CANCELED"


async def said_everything(client):
    """Wait until the task has all that its agent said, and return it."""
    async with asyncio.timeout(2 * SECONDS):  # every step copies the task
        while True:
            for task in (await client.list_tasks(ListTasksRequest())).tasks:
                if "progress" in task.metadata:
                    return task
            await asyncio.sleep(0.05)


class Source:
    """Events, the last of which nobody should ask for."""

    def __init__(self, count):
        self.count, self.asked, self.is_closed = count, 0, asyncio.Event()

    async def __call__(self):
        try:
            for number in range(self.count):
                self.asked = number + 1
                yield Task(id=str(number))
        finally:
            self.is_closed.set()


@pytest.mark.parametrize("bound", [{"most_events": 3}, {"most_bytes": 3 * Task(id="0").ByteSize()}])
async def test_a_reader_that_is_too_far_behind_gets_what_is_there_and_then_the_end(bound):
    source = Source(10)
    read = read_ahead(source(), **bound)
    got = [(await anext(read)).id]
    async with asyncio.timeout(SECONDS):
        await source.is_closed.wait()  # while its reader has not come back
    got += [event.id async for event in read]
    assert got == [str(number) for number in range(source.asked - 1)]
    assert len(got) in {3, 4}  # the first one had been taken before or after the source ran ahead


async def test_a_single_event_may_be_of_any_size_and_a_reader_that_keeps_up_gets_all():
    source = Source(10)
    assert [event.id async for event in read_ahead(source(), most_events=10, most_bytes=1)] != []
    assert [event.id async for event in read_ahead(Source(10)())] == [str(number) for number in range(10)]


async def test_an_error_comes_after_the_events_before_it_and_leaving_closes_the_source():
    async def fails():
        yield Task(id="0")
        raise ValueError("broken")

    read = read_ahead(fails())
    assert (await anext(read)).id == "0"
    with pytest.raises(ValueError, match="broken"):
        await anext(read)

    waits = asyncio.Event()

    async def silent():
        try:
            yield Task(id="0")
            await asyncio.Event().wait()
        finally:
            waits.set()

    read = read_ahead(silent())
    await anext(read)
    await read.aclose()
    assert waits.is_set()

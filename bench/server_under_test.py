"""The server that bench/server.py measures, with its floors as routes of the same process.

``memory`` or the URL of a store; ``plain`` serves without our protocol, as somebody's own app would be; ``one-core``
has one core to itself.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable

import apsw
import orjson
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import StreamingResponse

import stoppable
from serving import serve
from stoppable import Mode, Reason
from stoppable.records import StopIntent, StopRequest
from stoppable.server import AgentLoop, ServerLimits, create_app
from stoppable.server.limits import IdleConnections, bounded_protocol
from stoppable.supervisor import Supervisor

BATCH = 200


async def talker(events: int) -> None:
    """Tell so many events."""
    for n in range(events):
        stoppable.emit("step", n=n, text="a few words")
        if n % 100 == 0:
            await stoppable.sleep(0)


async def pacer(events: int) -> None:
    """Tell one event each millisecond."""
    for n in range(events):
        await asyncio.sleep(0.001)
        stoppable.emit("step", n=n, text="a few words")


async def ticks(count: int, at: float) -> AsyncIterator[int]:
    """Tick fifty times a second from a time on, and catch up with the clock if that was not possible."""
    at += next(_turns) % 50 / 2500  # not all in the same moment
    for n in range(count):
        await asyncio.sleep(at + n / 50 - time.time())
        yield n


_turns = itertools.count()


async def speaker(events: int, at: float) -> None:
    """Say fifty tokens a second."""
    async for n in ticks(events, at):
        stoppable.emit("step", n=n, text="a few words")


async def large(events: int, size: int) -> None:
    """Tell so many events of so many bytes, and wait for a stop."""
    for n in range(events):
        stoppable.emit("step", n=n, text="x" * size)
        await stoppable.sleep(0.02)
    await stoppable.sleep(3600)


async def deaf() -> None:
    """Never come to a boundary."""
    while True:
        with stoppable.shielded(3600):
            await stoppable.sleep(3600)


async def waiter() -> None:
    """Wait for a stop."""
    await stoppable.sleep(3600)


class StopIn(BaseModel):
    """What a stop carries."""

    mode: str = "graceful"
    reason: str | None = None
    grace: float | None = None


class StopOut(BaseModel):
    """What a stop answers."""

    runId: str  # noqa: N815 - as on the wire
    status: str
    receipt: dict[str, object]


def told(run_id: str, body: StopIn) -> StopOut:
    return StopOut(runId=run_id, status="stopping", receipt={"mode": body.mode, "reason": body.reason, "entries": []})


def add_stop_floors(app: FastAPI, supervisor: Supervisor, store: str | None) -> None:
    @app.post("/floor/{run_id}/stop", status_code=202)
    async def stop(run_id: str, body: StopIn) -> StopOut:
        intent = StopIntent(mode=Mode.of(body.mode), reason=Reason.of(body.reason))
        await supervisor.store.request_stop(StopRequest(target=run_id, intent=intent))
        return told(run_id, body)

    if store is None:
        return
    own = apsw.Connection(store.removeprefix("sqlite:///") + ".floor")
    own.pragma("journal_mode", "wal")
    own.pragma("synchronous", "full")
    own.execute("CREATE TABLE stops (run TEXT, stop TEXT)")

    @app.post("/floor/{run_id}/transaction", status_code=202)
    async def transaction(run_id: str, body: StopIn) -> StopOut:
        own.execute("INSERT INTO stops VALUES (?, ?)", (run_id, body.model_dump_json()))
        return told(run_id, body)


def encoded(numbers: Iterable[int], at: float = 1.5) -> bytes:
    return b"".join(
        b"id: %d\nevent: progress\ndata: %b\n\n"
        % (
            n,
            orjson.dumps(
                {
                    "runId": "0" * 32,
                    "seq": n,
                    "at": at,
                    "type": "progress",
                    "data": {"name": "step", "data": {"n": n, "text": "a few words"}},
                }
            ),
        )
        for n in numbers
    )


def add_stream_floors(app: FastAPI) -> None:
    def streamed(chunks: AsyncIterator[bytes]) -> StreamingResponse:
        return StreamingResponse(chunks, media_type="text/event-stream")

    @app.get("/floor/events")
    async def events(count: int) -> StreamingResponse:
        async def drained() -> AsyncIterator[bytes]:
            for at in range(0, count, BATCH):
                yield encoded(range(at, min(at + BATCH, count)))

        return streamed(drained())

    @app.get("/floor/live")
    async def live(count: int) -> StreamingResponse:
        async def paced() -> AsyncIterator[bytes]:
            for n in range(count):
                await asyncio.sleep(0.001)
                yield encoded([n])

        return streamed(paced())

    @app.get("/floor/spoken")
    async def spoken(count: int, at: float) -> StreamingResponse:
        async def paced() -> AsyncIterator[bytes]:
            async for n in ticks(count, at):
                yield encoded([n], time.time())

        return streamed(paced())

    @app.get("/floor/waiting")
    async def waiting() -> StreamingResponse:
        async def silent() -> AsyncIterator[bytes]:
            yield b":\n\n"
            await asyncio.sleep(3600)

        return streamed(silent())


async def raw(_: object, receive: object, send: object) -> None:
    """Hold a response open with nothing but uvicorn."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


def main(where: str, *, plain: bool, one_core: bool) -> None:
    if one_core:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if where == "raw":
        serve(raw)
    store = None if where == "memory" else where
    limits = ServerLimits(heartbeat=600, slow_seconds=600)
    supervisor = Supervisor(store)
    app = create_app(supervisor, [talker, pacer, speaker, large, deaf, waiter], agent_loop=AgentLoop(), limits=limits)
    add_stop_floors(app, supervisor, store)
    add_stream_floors(app)
    serve(
        app,
        http="httptools"
        if plain
        else bounded_protocol(limits, IdleConnections(limits.connections, limits.connections)),
    )


if __name__ == "__main__":
    main(sys.argv[1], plain="plain" in sys.argv[2:], one_core="one-core" in sys.argv[2:])

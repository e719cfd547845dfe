"""The server that bench/server.py measures, with its floors as routes of the same process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import orjson
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse

import stoppable
from machine import resident_bytes
from stoppable import Mode, Reason
from stoppable.records import StopIntent
from stoppable.server import AgentLoop, ServerLimits, create_app
from stoppable.server.protocol import bounded_protocol
from stoppable.stores.base import Store
from stoppable.supervisor import Supervisor

BATCH = 200


async def talker(events: int) -> None:
    """Tell so many events."""
    for n in range(events):
        stoppable.emit("step", n=n, text="a few words")
        if n % 100 == 0:
            await stoppable.sleep(0)


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


def add_floors(app: FastAPI, store: Store) -> None:
    @app.post("/floor/{run_id}/stop", status_code=202)
    async def stop(run_id: str, body: StopIn) -> StopOut:
        await store.request_stop(run_id, StopIntent(mode=Mode.of(body.mode), reason=Reason.of(body.reason)))
        return StopOut(runId=run_id, status="stopping", receipt={"mode": body.mode, "reason": body.reason, "nodes": []})

    @app.get("/floor/events")
    async def events(count: int) -> StreamingResponse:
        async def drained() -> AsyncIterator[bytes]:
            for at in range(0, count, BATCH):
                yield b"".join(
                    b"id: %d\nevent: progress\ndata: %b\n\n"
                    % (
                        n,
                        orjson.dumps(
                            {
                                "runId": "0" * 32,
                                "seq": n,
                                "at": 1.5,
                                "type": "progress",
                                "data": {"name": "step", "data": {"n": n, "text": "a few words"}},
                            }
                        ),
                    )
                    for n in range(at, min(at + BATCH, count))
                )

        return StreamingResponse(drained(), media_type="text/event-stream")

    async def usage(_: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{time.process_time_ns()} {resident_bytes()}")

    app.add_route("/usage", usage)


def main() -> None:
    limits = ServerLimits(heartbeat=600)
    supervisor = Supervisor()
    app = create_app(supervisor, [talker, deaf, waiter], agent_loop=AgentLoop(), limits=limits)
    add_floors(app, supervisor.store)
    config = uvicorn.Config(app, port=0, log_config=None, http=bounded_protocol(limits), access_log=False, backlog=4096)
    server = uvicorn.Server(config)
    startup = server.startup

    async def started(sockets: object = None) -> None:  # noqa: ARG001 - uvicorn's name
        await startup()
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)

    server.startup = started
    server.run()


if __name__ == "__main__":
    main()

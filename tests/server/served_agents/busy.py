"""Agents that are in the middle of something when the server is told to end."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import stoppable
import stoppable.sync
from stoppable.server import ServerLimits, serve

options = json.loads(sys.argv[1])
notes = Path(options.pop("notes"))


def note(text):
    with notes.open("a") as file:
        file.write(f"{text}\n")


@contextlib.asynccontextmanager
async def lifespan():
    note("entered")
    yield
    note("left")


async def polite(n: int = 0):
    try:
        while True:
            async with stoppable.boundary("tool", "step"):
                await stoppable.sleep(0.01)
            stoppable.emit("step")
    finally:
        note(f"cleaned up {n}")


def blocking():
    while True:
        stoppable.check()
        stoppable.sync.sleep(0.01)


async def stubborn():
    async with stoppable.boundary("tool", "never"):
        while True:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(60)


async def talkative():
    for _ in range(200):
        stoppable.emit("step", text="x" * 100_000)
        await stoppable.sleep(0)
    stoppable.emit("last")
    await stoppable.sleep(60)


if __name__ == "__main__":
    serve(
        [polite, blocking, stubborn, talkative],
        port=0,
        ready=lambda url: print(url, flush=True),
        lifespan=lifespan,
        limits=ServerLimits(slow_seconds=options.pop("slow_seconds", 20.0)),
        **options,
    )
    note("returned")

"""A server whose store has many runs, and an agent that tells as much as it is asked to."""

from __future__ import annotations

import asyncio
import sys

import stoppable
from stoppable.server import serve
from stoppable.stores.memory import MemoryStore
from stoppable.supervisor import Supervisor

EVENTS_KEPT = 1_000_000  # so that no log is truncated while it is measured


@stoppable.agent
async def talker(events: int, each_second: int) -> None:
    """Enter and leave boundaries."""
    for number in range(events // 2):
        async with stoppable.boundary("llm", "ask"):
            await asyncio.sleep(2 / each_second)
        if not number % 100:
            stoppable.set_partial(f"{number} of {events // 2}")


@stoppable.agent
async def quick() -> None:
    """Return at once."""


async def fill(store: MemoryStore, runs: int) -> None:
    async with Supervisor(store) as supervisor:
        for number in range(runs):
            await supervisor.start(quick, owner=f"user {number % 7}", labels={"batch": str(number // 100)})


if __name__ == "__main__":
    store = MemoryStore(events_kept=EVENTS_KEPT)
    asyncio.run(fill(store, int(sys.argv[1])))
    serve([talker, quick], store=store, port=0, ready=lambda url: print(url, flush=True))

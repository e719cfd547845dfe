"""A server that keeps long logs, and an agent that tells as much as it is asked to."""

from __future__ import annotations

import asyncio

import stoppable
from stoppable.server import serve
from stoppable.stores.memory import MemoryStore

EVENTS_KEPT = 1_000_000  # so that no log is truncated while it is measured


@stoppable.agent
async def talker(events: int, each_second: float) -> None:
    """Enter and leave boundaries."""
    for number in range(events // 2):
        async with stoppable.boundary("llm", "ask"):
            await asyncio.sleep(2 / each_second)
        if not number % 100:
            stoppable.set_partial(f"{number} of {events // 2}")


if __name__ == "__main__":
    serve([talker], store=MemoryStore(events_kept=EVENTS_KEPT), port=0, ready=lambda url: print(url, flush=True))

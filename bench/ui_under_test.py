"""A server that keeps long logs, and agents that tell and hold as much as they are asked to."""

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


@stoppable.agent
async def waiter() -> None:
    """Wait for a stop in a call."""
    async with stoppable.boundary("llm", "ask"):
        await stoppable.sleep(3600)


@stoppable.agent
async def crowd(children: int) -> None:
    """Wait for a stop in sub-runs."""
    for child in [await stoppable.spawn(waiter) for _ in range(children)]:
        await child.result()


async def _fetch(number: int) -> None:
    async with stoppable.boundary("tool", f"fetch_{number}"):
        await stoppable.sleep(3600)


@stoppable.agent
async def wide(calls: int) -> None:
    """Wait for a stop in many calls at once."""
    async with asyncio.TaskGroup() as group:
        for number in range(calls):
            group.create_task(_fetch(number))


if __name__ == "__main__":
    agents = [talker, waiter, crowd, wide]
    serve(agents, store=MemoryStore(events_kept=EVENTS_KEPT), port=0, ready=lambda url: print(url, flush=True))

"""The least that a stop can be, written by hand: how far any implementation with an edge around each run can come.

No tree, no boundaries, no hooks, no locks, no ladder, no receipt, no store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

Wait = Callable[[], Awaitable[object]]


class Bodies(Protocol):
    """Bodies that wait for something, and the time at which the last of them has left its wait."""

    ended: asyncio.Future[float]

    async def __call__(self, wait: Wait) -> None: ...


class _Stopped(BaseException):
    """What the least implementation raises in a body."""


class _Record:
    """The least that is known of a run which can be stopped."""

    __slots__ = ("closed", "future", "on_end", "outcome", "reason")

    def __init__(self) -> None:
        self.closed = False
        self.reason: str | None = None
        self.outcome: tuple[str, str | None, float] | None = None
        self.on_end: list[Callable[[], object]] = []
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        await self.future
        if self.closed:
            raise _Stopped(self.reason)

    async def edge(self, body: Bodies) -> None:
        try:
            await body(self.wait)
        except _Stopped:
            self.outcome = ("stopped", self.reason, time.monotonic())
            for wake in self.on_end:
                wake()


async def halt(count: int, bodies: Bodies, stops: Callable[[Wait], Awaitable[float]]) -> float:
    """Return the seconds from the stop of so many until the last body has halted."""
    loop = asyncio.get_running_loop()
    records = {str(number): _Record() for number in range(count)}
    tasks = [asyncio.create_task(record.edge(bodies)) for record in records.values()]
    await asyncio.sleep(0)

    def stop_all() -> None:
        for run_id in list(records):
            record = records[run_id]
            record.closed, record.reason = True, "user"
            record.future.set_result(None)

    async def stop() -> None:
        if asyncio.get_running_loop() is loop:
            stop_all()
        else:
            loop.call_soon_threadsafe(stop_all)

    began = await stops(stop)
    ended = await bodies.ended
    await asyncio.gather(*tasks)
    return ended - began

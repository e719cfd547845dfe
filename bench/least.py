"""The least that a stop can be, written by hand: how far any implementation with an edge around each run can come.

No tree, no boundaries, no hooks, no locks, no ladder, no receipt, no store. Once more with two of the things that a
stop needs before the body halts: an end to its wait, as a sleep has, and a stop of its own, which knows its target.
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

    __slots__ = ("closed", "future", "on_end", "outcome", "reason", "stop")

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

    async def sleep(self) -> None:
        timer = asyncio.get_running_loop().call_later(3600, self.future.cancel)
        try:
            await self.future
        finally:
            timer.cancel()
        if self.closed:
            raise _Stopped(self.reason)

    async def edge(self, body: Bodies, wait: Wait) -> None:
        try:
            await body(wait)
        except _Stopped:
            self.outcome = ("stopped", self.reason, time.monotonic())
            for wake in self.on_end:
                wake()


class _Stop:
    """The least that is known of one stop."""

    __slots__ = ("at", "target")

    def __init__(self, target: _Record) -> None:
        self.target = target
        self.at = time.monotonic()


async def halt(count: int, bodies: Bodies, stops: Callable[[Wait], Awaitable[float]], *, is_bare: bool = True) -> float:
    """Return the seconds from the stop of so many until the last body has halted."""
    loop = asyncio.get_running_loop()
    records = {str(number): _Record() for number in range(count)}
    tasks = [asyncio.create_task(one.edge(bodies, one.wait if is_bare else one.sleep)) for one in records.values()]
    await asyncio.sleep(0)

    def stop_all() -> None:
        for run_id in list(records):
            record = records[run_id]
            record.closed, record.reason = True, "user"
            if not is_bare:
                record.stop = _Stop(record)
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

"""Waking whoever waits, as a task or as a thread, for what another thread does."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 60.0


class Alarm:
    """Wakes the one thread that waits for it.

    Re-entrant, which an event of ``threading`` is not: a signal handler may ring it on the very thread that waits.
    """

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        """Wake it, now or when it comes to wait; from any thread and from a signal handler."""
        self._rings.put(None)

    def wait(self) -> bool:
        """Wait until it rings; False after a minute without."""
        try:
            self._rings.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return False
        return True


class Bell:
    """Wakes whoever waits for something that another thread does: tasks of any loop, and threads."""

    __slots__ = ("_wakers",)

    def __init__(self) -> None:
        self._wakers: dict[object, Callable[[], object]] = {}

    def ring(self) -> None:
        """Let everybody look again."""
        if self._wakers:
            for wake in list(self._wakers.values()):
                wake()

    async def wait(self, ready: Callable[[], bool], *, blocking: bool) -> None:
        """Wait until something is so; ``blocking`` waits in place, on the calling thread."""
        while not ready():
            waiter: asyncio.Future[None] | Alarm
            if blocking:
                waiter = Alarm()
                self._wakers[waiter] = waiter.ring
            else:
                waiter = asyncio.get_running_loop().create_future()
                self._wakers[waiter] = functools.partial(_wake, waiter)
            try:
                # Published first, looked at afterwards: no change slips through between the two.
                if ready():
                    return
                if isinstance(waiter, Alarm):
                    waiter.wait()
                else:
                    await waiter
            finally:
                del self._wakers[waiter]


def _wake(future: asyncio.Future[None]) -> None:
    if asyncio._get_running_loop() is future.get_loop():
        _resolve(future)
        return
    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
        future.get_loop().call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def run_in_place(steps: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that waits in place to its end."""
    try:
        steps.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("blocking code does not suspend")

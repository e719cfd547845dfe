"""Wakes tasks and threads that wait for something that another thread does."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 60.0


class Alarm:
    """Wakes the one thread that waits on it; rings that nobody waited for count once.

    A lock that is free while it rings. Unlike ``threading.Event`` it is re-entrant: a signal handler may ring on the
    thread that waits. Unlike ``SimpleQueue.get``, which before 3.13 waits for ever if a signal arrives at its deadline,
    a lock keeps its deadline.
    """

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the thread, now or when it waits next; from any thread and from a signal handler."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._silence.release()

    @property
    def is_ringing(self) -> bool:
        """Whether the next wait returns at once."""
        return not self._silence.locked()

    def wait(self, seconds: float = _LOOK_SECONDS) -> bool:
        """Wait until it rings; return False after a minute, or the given time, without a ring."""
        return self._silence.acquire(timeout=max(0.0, seconds))


class Bell:
    """Wakes tasks of any loop and threads that wait for a condition which another thread changes."""

    __slots__ = ("_wakers",)

    def __init__(self) -> None:
        self._wakers: dict[object, Callable[[], object]] = {}

    def ring(self) -> None:
        """Make all waiters check their condition again."""
        if self._wakers:
            for wake in list(self._wakers.values()):
                wake()

    async def wait(self, ready: Callable[[], bool], *, blocking: bool) -> None:
        """Wait until a condition is true; ``blocking`` waits on the calling thread."""
        while not ready():
            waiter: asyncio.Future[None] | Alarm
            if blocking:
                waiter = Alarm()
                self._wakers[waiter] = waiter.ring
            else:
                waiter = asyncio.get_running_loop().create_future()
                self._wakers[waiter] = functools.partial(_wake, waiter)
            try:
                # Registered first, checked afterwards, so that no change is missed in between.
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
    with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
        future.get_loop().call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def run_in_place(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        steps.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("a blocking coroutine never suspends")

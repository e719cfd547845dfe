"""Waking: whoever waits for a process, as a task or as a thread, and the thread that serves the process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import selectors
import threading
from collections.abc import Callable

_CHUNK = 1 << 16


class Bell:
    """Wakes whoever waits for something that another thread does: tasks of any loop, and threads."""

    __slots__ = ("_wakers",)

    def __init__(self) -> None:
        self._wakers: dict[object, Callable[[], object]] = {}

    def ring(self) -> None:
        """Let everybody look again."""
        for wake in list(self._wakers.values()):
            wake()

    async def wait(self, ready: Callable[[], bool], *, blocking: bool) -> None:
        """Wait until something is so; ``blocking`` waits in place, on the calling thread."""
        while not ready():
            waiter: asyncio.Future[None] | threading.Event
            if blocking:
                waiter = threading.Event()
                self._wakers[waiter] = waiter.set
            else:
                waiter = asyncio.get_running_loop().create_future()
                self._wakers[waiter] = functools.partial(_wake, waiter)
            try:
                # Published first, looked at afterwards: no change slips through between the two.
                if ready():
                    return
                if isinstance(waiter, threading.Event):
                    waiter.wait(timeout=60)
                else:
                    await waiter
            finally:
                del self._wakers[waiter]


def _wake(future: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
        future.get_loop().call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Waker:
    """Wakes the one thread that serves a process out of its ``select``."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may wake it while this very thread does.
        self._lock = threading.RLock()
        self._ends: tuple[int, int] | None = None

    def open(self) -> None:
        """Make it work; what was wanted before is seen by the thread when it begins."""
        self._ends = os.pipe()
        for end in self._ends:
            os.set_blocking(end, False)

    def wake(self) -> None:
        """Make its ``select`` return, now or when it comes to it."""
        with self._lock, contextlib.suppress(BlockingIOError):  # full: it will wake anyway
            if self._ends is not None:
                os.write(self._ends[1], b"\0")

    def register_in(self, selector: selectors.BaseSelector) -> None:
        """Let a selector see the wake-ups."""
        assert self._ends is not None, "opened before"
        handle = self._ends[0]
        selector.register(handle, selectors.EVENT_READ, lambda: os.read(handle, _CHUNK))

    def close(self) -> None:
        """Wake nobody any more; under the lock, because the number of a closed pipe is given to another file."""
        with self._lock:
            ends, self._ends = self._ends or (), None
            for end in ends:
                os.close(end)

"""Wakes a thread that waits for processes."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading

_CHUNK = 1 << 16


class Waker:
    """Wakes one thread from its ``select``, through a pipe."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may call ``wake`` while the same thread is in it.
        self._lock = threading.RLock()
        self._ends: tuple[int, int] | None = None

    def open(self) -> None:
        """Open the pipe; earlier calls of ``wake`` do nothing, because the thread checks for work when it begins."""
        self._ends = os.pipe()
        for end in self._ends:
            os.set_blocking(end, False)

    def wake(self) -> None:
        """Make the current or next ``select`` return."""
        with self._lock, contextlib.suppress(BlockingIOError):  # the pipe is full: the thread will wake anyway
            if self._ends is not None:
                os.write(self._ends[1], b"\0")

    def register_in(self, selector: selectors.BaseSelector) -> None:
        """Register the pipe in the selector of the thread."""
        assert self._ends is not None, "opened before"
        handle = self._ends[0]
        selector.register(handle, selectors.EVENT_READ, lambda: os.read(handle, _CHUNK))

    def close(self) -> None:
        """Close the pipe, under the lock: ``wake`` must not write to another file that reuses the descriptor."""
        with self._lock:
            ends, self._ends = self._ends or (), None
            for end in ends:
                os.close(end)

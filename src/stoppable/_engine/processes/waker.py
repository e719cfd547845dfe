"""Waking the thread that serves a process."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading

_CHUNK = 1 << 16


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

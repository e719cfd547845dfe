"""Daemon threads that are kept for reuse."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable

_IDLE_SECONDS = 10.0
_numbers = itertools.count(1)


class DaemonPool:
    """Runs calls on threads of its own; grows as needed up to ``limit``, and lets idle threads end.

    Its threads are daemons: neither the interpreter's exit nor the end of an event loop waits for one that hangs.
    """

    def __init__(self, name: str, limit: int | None = None) -> None:
        self._name = name
        self._limit = limit
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unclaimed = 0  # threads waiting for a call, less the calls on their way to them

    def submit(self, call: Callable[[], object]) -> None:
        """Run a call, which must not raise, on some thread; at once unless ``limit`` threads are busy.

        Raises RuntimeError, and never runs the call, if a thread is needed and the system has none to give.
        """
        with self._lock:
            needs_thread = self._unclaimed <= 0 and (self._limit is None or self._threads < self._limit)
            self._threads += needs_thread
            self._unclaimed += needs_thread - 1
        if needs_thread:
            try:
                threading.Thread(target=self._work, name=f"{self._name}-{next(_numbers)}", daemon=True).start()
            except RuntimeError:
                with self._lock:
                    self._threads -= 1
                raise
        self._calls.put(call)

    def close(self) -> None:
        """Let every thread end after the calls that were submitted; there must not be any later ones."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._calls.put(None)

    def forget_threads(self) -> None:
        """Begin anew after a fork, which no thread survives."""
        self.__init__(self._name, self._limit)  # type: ignore[misc]  # exactly what a new one is

    def is_busy(self) -> bool:
        """Return whether a call is running or waiting for a thread."""
        with self._lock:
            return self._unclaimed < self._threads

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._unclaimed <= 0:
                        continue  # a call is on its way
                    self._threads -= 1
                    self._unclaimed -= 1
                return
            if call is None:
                with self._lock:
                    self._threads -= 1
                    self._unclaimed -= 1
                return
            call()
            del call  # a thread that waits must not keep the last call's results alive
            with self._lock:
                self._unclaimed += 1

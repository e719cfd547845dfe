"""A thread that takes, each time, everything that waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_log = logging.getLogger("stoppable")


class BatchThread(Generic[T]):
    """Hands what is put into it to one function, on one thread, in order, as many at once as there are."""

    def __init__(
        self,
        name: str,
        work: Callable[[list[T]], object],
        idle: Callable[[], float | None] = lambda: None,
        most: int = 1000,
    ) -> None:
        """Call ``idle`` whenever nothing waits; it says after how many seconds it wants to be called again."""
        self._work = work
        self._idle = idle
        self._most = most
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: list[T] = []
        self._is_working = False
        self._turns = 0
        self._is_asleep = False
        self._is_nudged = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.turn: threading.RLock = threading.RLock()
        """Held while it works: whoever has it finds the batches between two batches."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: T, *, first: bool = False) -> bool:
        """Add something, behind all that waits or before it; False once it was closed."""
        with self._lock:
            if self._is_closed:
                return False
            self._waiting.insert(0 if first else len(self._waiting), item)
            if self._is_asleep:
                self._is_asleep = False
                self._changed.notify()
            return True

    def put_behind(self, item: T) -> bool:
        """Add something if there is anything that it has to wait for."""
        with self._lock:
            if self._is_working or self._waiting:
                self._waiting.append(item)
                return True
            return False

    def nudge(self) -> None:
        """Have ``idle`` called."""
        with self._lock:
            self._is_nudged = True
            self._changed.notify()

    def close(self, patience: float) -> bool:
        """Finish what waits, and end the thread; False if it makes no progress for so many seconds."""
        with self._lock:
            self._is_closed = True
            self._changed.notify()
        turns = -1
        while self._thread.is_alive() and turns != self._turns:
            turns = self._turns
            self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            batch = self._take()
            if batch:
                try:
                    with self.turn:
                        self._work(batch)
                except Exception:  # a function that somebody hung on a reply: the others must not wait for ever
                    _log.exception("stoppable: an error on the thread %s", self._thread.name)
                continue
            with self._lock:
                if self._is_closed and not self._waiting:
                    return
                self._is_nudged = False
            with self.turn:
                seconds = self._idle()
            with self._lock:
                if not (self._waiting or self._is_nudged or self._is_closed):
                    self._is_asleep = True
                    self._changed.wait(seconds)
                    self._is_asleep = False

    def _take(self) -> list[T]:
        with self._lock:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            self._is_working = bool(batch)
            self._turns += 1
            return batch

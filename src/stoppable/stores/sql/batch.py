"""A thread that processes its queue in batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_log = logging.getLogger("stoppable")


class BatchThread(Generic[T]):
    """Calls a function with everything that was queued since the last call, in order, on one thread."""

    def __init__(
        self,
        name: str,
        work: Callable[[list[T]], object],
        idle: Callable[[], float | None] = lambda: None,
        most: int = 1000,
    ) -> None:
        """``idle`` is called when the queue is empty; it returns after how many seconds to call it again, or None."""
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
        """Held during each batch: a thread that takes it knows that no batch is in progress."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: T, *, first: bool = False) -> bool:
        """Queue an item, last or first; False if the thread was closed."""
        with self._lock:
            if self._is_closed:
                return False
            self._waiting.insert(0 if first else len(self._waiting), item)
            if self._is_asleep:
                self._is_asleep = False
                self._changed.notify()
            return True

    def put_behind(self, item: T) -> bool:
        """Queue an item only if another one is queued or in progress; False if none is."""
        with self._lock:
            if self._is_working or self._waiting:
                self._waiting.append(item)
                return True
            return False

    def nudge(self) -> None:
        """Call ``idle`` soon."""
        with self._lock:
            self._is_nudged = True
            self._changed.notify()

    def close(self, patience: float) -> bool:
        """Process the queue and end the thread; False if it makes no progress for ``patience`` seconds."""
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
                except Exception:  # a callback of a future failed: the queue must go on
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

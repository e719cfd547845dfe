"""A database while it is open, as the stores share it: calls are queued for one writing thread and for readers."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from stoppable.errors import StoreError
from stoppable.records import RunRecord
from stoppable.stores.base import Intent, Listeners, StoreFuture, WorkerInfo
from stoppable.stores.sql.worker_locks import WorkerLocks

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
        self._change = threading.Condition(self._lock)
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
                self._change.notify()
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
            self._change.notify()

    def close(self, patience: float) -> bool:
        """Process the queue and end the thread; False if it makes no progress for ``patience`` seconds."""
        with self._lock:
            self._is_closed = True
            self._change.notify()
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
                    self._change.wait(seconds)
                    self._is_asleep = False

    def _take(self) -> list[T]:
        with self._lock:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            self._is_working = bool(batch)
            self._turns += 1
            return batch


PATIENCE_SECONDS = 10.0
"""How long closing a store waits for a call that makes no progress."""

Write = tuple[Callable[..., Any], tuple[Any, ...], StoreFuture[Any]]
Read = tuple[Callable[..., Any], tuple[Any, ...], StoreFuture[Any]]

PASS_ON: StoreFuture[Any] = StoreFuture()
"""Marks a queue entry that forwards a read to its reader, after the writes before it."""


class LeaseCalls(Protocol):
    """The calls of workers; as in Store, in a transaction."""

    def open_worker(self, tx: Any, info: WorkerInfo, ttl: float) -> None: ...  # noqa: D102
    def heartbeat(self, tx: Any, worker: str, ttl: float) -> Sequence[Intent]: ...  # noqa: D102
    def close_worker(self, tx: Any, worker: str) -> None: ...  # noqa: D102
    def reap(self, tx: Any, limit: int, expired: bool) -> Sequence[RunRecord]: ...  # noqa: D102, FBT001 - the store names it


class SqlEngine(ABC):
    """What a store has between open and close; belongs to one process."""

    leases: LeaseCalls
    locks: WorkerLocks
    _write_thread: BatchThread[Write]

    def __init__(self, name: str, hints: Listeners, watchers: Listeners) -> None:
        self.pid: int = os.getpid()
        self._name = name
        self._hints = hints
        self._watchers = watchers

    @property
    @abstractmethod
    def is_ours(self) -> bool:
        """Whether this process opened it, and not the one that it was forked from."""

    @abstractmethod
    def look(self) -> None:
        """Begin to follow what listeners were added for."""

    @abstractmethod
    def close(self) -> None:
        """Finish what was asked, and disconnect."""

    @abstractmethod
    def _urgent(self, write: Write) -> bool:
        """Queue a write that must not wait for others; False if the engine was closed."""

    @abstractmethod
    def _next_reader(self) -> BatchThread[Read]:
        """Return the thread for the next read."""

    def write(self, call: Callable[..., T], *args: Any, urgent: bool = False) -> StoreFuture[T]:
        """Make a change, after the changes before it unless it is urgent."""
        future: StoreFuture[T] = StoreFuture()
        write = (call, args, future)
        return self._check_queued(future, is_queued=self._urgent(write) if urgent else self._write_thread.put(write))

    def read(self, call: Callable[..., T], *args: Any) -> StoreFuture[T]:
        """Look something up, after the changes before it."""
        future: StoreFuture[T] = StoreFuture()
        read, reader = (call, args, future), self._next_reader()
        is_behind = self._write_thread.put_behind((lambda: reader.put(read), (), PASS_ON))
        return self._check_queued(future, is_queued=is_behind or reader.put(read))

    def _check_queued(self, future: StoreFuture[T], *, is_queued: bool) -> StoreFuture[T]:
        if not is_queued:
            raise StoreError(f"{self._name} was closed")
        return future


def call_all(calls: Iterable[Callable[[], object]], name: str) -> None:
    """Make calls that follow a transaction; one that fails stops no other, since the transaction stands."""
    for call in calls:
        try:
            call()
        except Exception:
            _log.exception("stoppable: %s: a listener failed", name)

"""A database while it is open, as the stores share it: calls are queued for one writing thread and for readers."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from stoppable.errors import StoreError
from stoppable.records import RunRecord
from stoppable.stores.base import Intent, WorkerInfo
from stoppable.stores.future import StoreFuture
from stoppable.stores.listeners import Listeners
from stoppable.stores.sql.batch import BatchThread
from stoppable.stores.sql.worker_locks import WorkerLocks

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""How long closing a store waits for a call that makes no progress."""

Write = tuple[Callable[..., Any], tuple[Any, ...], StoreFuture[Any]]
Read = tuple[Callable[..., Any], tuple[Any, ...], StoreFuture[Any]]

PASS_ON: StoreFuture[Any] = StoreFuture()
"""Stands for the result of a write that only hands a read to its reader, after the writes before it."""

_log = logging.getLogger("stoppable")


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
    def intents(self, worker: str) -> StoreFuture[Sequence[Intent]]:
        """Return the pending stops of a worker, in the fastest way from this thread."""

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
        return self._queued(future, is_queued=self._urgent(write) if urgent else self._write_thread.put(write))

    def read(self, call: Callable[..., T], *args: Any) -> StoreFuture[T]:
        """Look something up, after the changes before it."""
        future: StoreFuture[T] = StoreFuture()
        read, reader = (call, args, future), self._next_reader()
        is_behind = self._write_thread.put_behind((lambda: reader.put(read), (), PASS_ON))
        return self._queued(future, is_queued=is_behind or reader.put(read))

    def _queued(self, future: StoreFuture[T], *, is_queued: bool) -> StoreFuture[T]:
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

"""The Store protocol over a database: each call becomes a function that a thread of the store runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stoppable._core.stop import Receipt
from stoppable._core.values import Mode
from stoppable.errors import InvalidArgument, StoppableError, StoreError
from stoppable.records import (
    AuditEntry,
    Draft,
    Event,
    EventType,
    Filter,
    Hold,
    OutcomeRecord,
    RunRecord,
    RunSummary,
    Selector,
    StopIntent,
    StopRequest,
    StopResult,
    Summaries,
)
from stoppable.stores.base import Intent, Listeners, Registration, StoreFuture, Subscription, Tail, Wake, WorkerInfo
from stoppable.stores.sql import queries, stop_requests
from stoppable.stores.sql.rows import Lines
from stoppable.stores.sql.sql_engine import SqlEngine
from stoppable.stores.sql.stop_requests import PendingStop

T = TypeVar("T")
E = TypeVar("E", bound=SqlEngine)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCalls:
    """The calls that each database makes in its own way; the first argument of each is a transaction or a session."""

    register: Callable[[Any, RunRecord, str], Registration]
    request_stop: Callable[[Any, PendingStop], StopResult]
    acknowledge: Callable[[Any, str, int, Mode, Receipt], None]
    finish: Callable[[Any, str, int, OutcomeRecord, Receipt | None, Lines], RunRecord]
    append: Callable[[Any, str, int, Lines], int]
    in_flight: Callable[[Any, Sequence[str], int], Mapping[str, tuple[str, ...] | None]]
    purge: Callable[[Any, float, int], int]


class SqlStore(ABC, Generic[E]):
    """The Store protocol over an engine; a store says how to open one, and which calls it makes in its own way."""

    _calls: StoreCalls

    def __init__(self, name: str, events_kept: int) -> None:
        self.name: str = name
        """What errors call it."""
        self._events_kept = events_kept
        self._hints = Listeners()
        self._watchers = Listeners()
        self._engine: E | None = None

    @abstractmethod
    def _connect(self) -> E:
        """Open the database, and make its tables or bring them up to date."""

    # Opening and closing

    def open(self) -> None:
        """Open the database."""
        if self._engine is not None:
            if self._engine.is_ours:
                return
            self._hints, self._watchers = Listeners(), Listeners()  # a forked child leaves those of its parent alone
        self._engine = self._connect()

    def close(self) -> None:
        """Finish what was asked, and disconnect. A worker that was not closed keeps its lock."""
        engine, self._engine = self._engine, None
        if engine is not None and engine.is_ours:
            engine.close()

    @property
    def inherited(self) -> tuple[int, ...]:
        """The descriptors that children of our workers must inherit: while one is open, its worker is not dead."""
        return () if self._engine is None else self._engine.locks.descriptors

    def _open_engine(self) -> E:
        engine = self._engine
        if engine is None:
            raise StoreError(f"{self.name} is not open: call open() first, and close() last")
        if not engine.is_ours:
            raise StoreError(f"{self.name} was opened by process {engine.pid}, before a fork: open another store")
        return engine

    def _ask(self, call: Callable[[E], StoreFuture[T]]) -> StoreFuture[T]:
        try:
            return call(self._open_engine())
        except StoppableError as error:
            return StoreFuture.failed(error)

    def _write(self, call: Callable[..., T], *args: Any) -> StoreFuture[T]:
        return self._ask(lambda engine: engine.write(call, *args))

    def _read(self, call: Callable[..., T], *args: Any) -> StoreFuture[T]:
        return self._ask(lambda engine: engine.read(call, *args))

    # Workers

    def open_worker(self, info: WorkerInfo, ttl: float) -> StoreFuture[None]:
        """Give a process a lease."""
        return self._ask(lambda engine: engine.write(engine.leases.open_worker, info, ttl))

    def heartbeat(self, worker: str, ttl: float) -> StoreFuture[Sequence[Intent]]:
        """Renew a lease, and return the pending stops; urgent, so that much to write does not let a lease expire."""
        return self._ask(lambda engine: engine.write(engine.leases.heartbeat, worker, ttl, urgent=True))

    def intents(self, worker: str) -> StoreFuture[Sequence[Intent]]:
        """Return the pending stops."""
        return self._read(queries.intents, worker)

    def close_worker(self, worker: str) -> StoreFuture[None]:
        """Release a lease."""
        return self._ask(lambda engine: engine.write(engine.leases.close_worker, worker))

    def reap(self, limit: int = 100, *, expired: bool = True) -> StoreFuture[Sequence[RunRecord]]:
        """End the runs of workers that are gone."""
        return self._ask(lambda engine: engine.write(engine.leases.reap, limit, expired))

    def hints(self, worker: str, wake: Wake) -> Subscription:
        """Call a function when there may be a stop for a worker."""
        return self._listen(self._open_engine(), self._hints, worker, wake)

    def watch(self, run_id: str, wake: Callable[[], object]) -> Subscription:
        """Call a function when a run may have changed."""
        return self._listen(self._open_engine(), self._watchers, run_id, wake)

    @staticmethod
    def _listen(engine: SqlEngine, listeners: Listeners, name: str, wake: Callable[..., object]) -> Subscription:
        subscription = listeners.add(name, wake)
        engine.look()
        return subscription

    # Runs

    def register(self, record: RunRecord, request: str) -> StoreFuture[Registration]:
        """Store a new run."""
        return self._write(self._calls.register, record, request)

    def request_stop(self, request: StopRequest) -> StoreFuture[StopResult]:
        """Store a stop, then notify the workers."""
        return self._write(self._calls.request_stop, PendingStop(request))

    def acknowledge(self, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> StoreFuture[None]:
        """Record that a gate is closed."""
        return self._write(self._calls.acknowledge, run_id, epoch, mode, receipt)

    def finish(
        self,
        run_id: str,
        epoch: int,
        outcome: OutcomeRecord,
        receipt: Receipt | None,
        events: Sequence[Draft] = (),
    ) -> StoreFuture[RunRecord]:
        """Write the terminal status, if there is none."""
        try:
            lines = Lines(events)
        except InvalidArgument as error:
            return StoreFuture.failed(error)
        return self._write(self._calls.finish, run_id, epoch, outcome, receipt, lines)

    # Events

    def append(self, run_id: str, epoch: int, events: Sequence[Draft]) -> StoreFuture[int]:
        """Append to a run's log."""
        try:
            lines = Lines(events)
        except InvalidArgument as error:
            return StoreFuture.failed(error)
        return self._write(self._calls.append, run_id, epoch, lines)

    def read(self, run_id: str, after: int = 0, limit: int = 1000) -> StoreFuture[Sequence[Event]]:
        """Return a part of a run's log."""
        return self._read(queries.read, run_id, after, limit)

    def tail(
        self, after: int = 0, limit: int = 1000, *, types: Collection[EventType] = (), below: str | None = None
    ) -> StoreFuture[Tail]:
        """Return events of many runs in order."""
        return self._read(queries.tail, after, limit, types, below)

    def in_flight(self, run_ids: Sequence[str]) -> StoreFuture[Mapping[str, tuple[str, ...] | None]]:
        """Return the open boundaries of live runs."""
        return self._read(self._calls.in_flight, run_ids, self._events_kept)

    # Looking

    def get(self, run_id: str) -> StoreFuture[RunRecord]:
        """Return a record."""
        return self._read(queries.get, run_id)

    def query(self, wanted: Filter, cursor: str | None = None, limit: int = 100) -> StoreFuture[Summaries]:
        """Return the runs that match, newest first."""
        return self._read(queries.query, wanted, cursor, limit)

    def tree(self, run_id: str) -> StoreFuture[Sequence[RunSummary]]:
        """Return a run and all its descendants."""
        return self._read(queries.tree, run_id)

    def counts(self) -> StoreFuture[Mapping[str, int]]:
        """Return how many runs have each status."""
        return self._read(queries.counts)

    # Holds, audit, retention

    def place_hold(self, selector: Selector, intent: StopIntent) -> StoreFuture[Hold]:
        """Refuse new starts."""
        return self._write(stop_requests.place_hold, selector, intent)

    def release(self, hold_id: str, actor: str | None = None) -> StoreFuture[Hold]:
        """Remove a hold."""
        return self._write(stop_requests.release, hold_id, actor)

    def holds(self) -> StoreFuture[Sequence[Hold]]:
        """Return the holds that are in force."""
        return self._read(stop_requests.holds)

    def audit(self, after: int = 0, limit: int = 100) -> StoreFuture[Sequence[AuditEntry]]:
        """Return the audit."""
        return self._read(stop_requests.audit, after, limit)

    def purge(self, before: float, limit: int = 1000) -> StoreFuture[int]:
        """Delete trees that ended before a time."""
        return self._write(self._calls.purge, before, limit)

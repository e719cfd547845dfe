"""The Store protocol: what every store must do, atomically.

Each call is atomic, calls of one process take effect in order, and a call is answered when it is durable. Times come
from the store's clock. Notifications of changes (``hints``, ``watch``) are only for speed and may be lost, so workers
read the store again on every heartbeat. ``testing.StoreContract`` tests all of this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stoppable._core.state import Mode
from stoppable._core.stop import Receipt
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
    StopResult,
    Summaries,
)
from stoppable.stores.future import StoreFuture

EVENTS_KEPT = 10_000
"""How many events of one run are kept before its log is truncated."""

READ_BYTES = 262_144
"""About how many bytes of a log one call loads, so that large events do not fill the memory."""

wall_clock: Callable[[], float] = time.time  # noqa: TID251 - people read these times; leases go by a clock of the boot
"""Seconds since 1970."""

KEYS_KEPT = 86_400.0
"""How many seconds the idempotency key of a stop outlives the runs it stopped; retries end before that."""

TOMBSTONE_SECONDS = 60.0
"""How long a stop that came before its run waits for it."""

NEXT_TURN_SECONDS = 5.0
"""How long a stop by key waits for the next run, if the key has had runs; short, to spare the user's next question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A process that executes runs."""

    id: str
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A stop that a worker has not yet acknowledged."""

    run_id: str
    stop: StopIntent


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The result of a start; ``created`` is False if an earlier, equal request had started the run.

    A record with the status ``stopped`` never begins: its parent was stopping, or its own stop came first.
    """

    record: RunRecord
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Events of many runs, in store order; ``place`` is the position after them."""

    place: int
    events: tuple[tuple[int, Event], ...] = ()
    """The events, each with its place."""
    has_more: bool = False


class Subscription(Protocol):
    """A callback that is called until it is closed."""

    def close(self) -> None:
        """Stop the calls; one more may already be in progress."""
        ...


class Store(Protocol):
    """Keeps runs. One store may be shared by threads and event loops."""

    # Opening and closing

    def open(self) -> None:
        """Connect; may block for a moment. Raises StoreError, which says what to do."""
        ...

    def close(self) -> None:
        """Finish pending calls and disconnect; may block for a moment."""
        ...

    def now(self) -> float:
        """Return the time of the store's clock, in seconds since 1970."""
        ...

    @property
    def inherited(self) -> tuple[int, ...]:
        """File descriptors that child processes of a worker must inherit: while one is open, the worker is not dead."""
        ...

    # Workers

    def open_worker(self, info: WorkerInfo, ttl: float) -> StoreFuture[None]:
        """Give a process a lease, starting now, so that a worker that dies before its first heartbeat is noticed too.

        A repeated call renews the lease. For a worker that was closed or reaped it raises Fenced, for good.
        """
        ...

    def heartbeat(self, worker: str, ttl: float) -> StoreFuture[Sequence[Intent]]:
        """Renew the lease and return every unacknowledged stop; raises Fenced if the worker was reaped."""
        ...

    def intents(self, worker: str) -> StoreFuture[Sequence[Intent]]:
        """Return every stop that is not yet acknowledged, without renewing the lease; called after a hint."""
        ...

    def close_worker(self, worker: str) -> StoreFuture[None]:
        """Release the lease; runs that are left behind are reaped at once, because the worker is proven dead."""
        ...

    def hints(self, worker: str, wake: Callable[[], object]) -> Subscription:
        """Call ``wake``, on any thread, when there may be a stop for a worker; may miss some and repeat others.

        ``wake`` must not wait for a future: it may be called on the thread that makes the store's calls.
        """
        ...

    def reap(self, limit: int = 100, *, expired: bool = True) -> StoreFuture[Sequence[RunRecord]]:
        """End the runs of workers that are gone, and return them.

        The runs of a worker that is proven dead become ``stopped`` if a stop was pending, otherwise ``failed``. An
        expired lease proves nothing: with ``expired``, such runs become ``lost``, and every worker without a lease is
        fenced, even if ``limit`` leaves some of their runs for the next call. A supervisor passes ``expired`` only
        after it has run for one TTL.
        """
        ...

    # Runs

    def register(self, record: RunRecord, request: str) -> StoreFuture[Registered]:
        """Store a new run. ``request`` is a digest of the start.

        The same id with the same request and owner returns the existing run; otherwise an existing id raises
        RunConflict. A worker without a lease gets Fenced. A matching hold raises RunHeld, except for child runs. If the
        parent is stopping or has ended, or a stop of this id or key came first, the run is stopped before it begins.

        A record with the status ``running`` is a child that its worker has already begun: it gets the stop of its
        parent, if there is one, and its worker reports its end.
        """
        ...

    def request_stop(
        self,
        target: str | Selector,
        intent: StopIntent,
        *,
        idempotency_key: str | None = None,
        hold: bool = False,
        dry_run: bool = False,
        owner: str | None = None,
        if_unknown_hold: bool | None = False,
        asked_at: float | None = None,
    ) -> StoreFuture[StopResult]:
        """Store a stop of a run, or of all live runs that a selector matches, with their subtrees; then notify workers.

        The answer lists each matching run, except those below another match. The mode of a run's stop only rises, and
        its first reason stays. A repeated ``idempotency_key`` of the same ``owner`` returns the first answer. A hold
        needs a selector, and is placed before the runs are listed. With ``dry_run`` nothing changes. With an ``owner``,
        runs of other owners raise RunNotFound, and a hold never affects other owners.

        With ``if_unknown_hold`` a stop of an unknown id waits TOMBSTONE_SECONDS for a run with that id and owner. A
        stop by a key without live runs waits for the next run of that key: TOMBSTONE_SECONDS, or NEXT_TURN_SECONDS if
        the key has had runs; its selector may contain only the key and an owner. With None it waits only for the first
        run of a key. Looking for runs and waiting is one atomic step: no start comes in between.

        ``asked_at`` is the time of the request, if some runs were stopped before this call.
        """
        ...

    def acknowledge(self, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> StoreFuture[None]:
        """Record that the gate is closed for stops up to a mode, and store the receipt so far.

        This also acknowledges the stop for the run's descendants on the same worker, whose gates the same stop has
        closed.
        """
        ...

    def finish(
        self,
        run_id: str,
        epoch: int,
        outcome: OutcomeRecord,
        receipt: Receipt | None,
        events: Sequence[Draft] = (),
    ) -> StoreFuture[RunRecord]:
        """Write the terminal status if there is none (G2), append the last events and ``done``, and bump the epoch.

        Returns the stored record. If another report was first, this one becomes a ``late`` event (G15). If the worker
        sent no receipt for a stop, the store makes one.
        """
        ...

    # Events

    def append(self, run_id: str, epoch: int, events: Sequence[Draft]) -> StoreFuture[int]:
        """Append events to a run's log and return the last sequence number; raises Fenced for an old epoch.

        A ``status`` event moves the record along the transition table, an ``annotated`` event adds to its metadata.
        After EVENTS_KEPT events one ``truncated`` event is added, and from then on only status events.
        """
        ...

    def read(self, run_id: str, after: int = 0, limit: int = 1000) -> StoreFuture[Sequence[Event]]:
        """Return events with a higher sequence number, in order: up to ``limit``, or fewer if they are large.

        One call loads about READ_BYTES, and at least one event; to get all, read until nothing comes. Fewer than
        ``limit`` events with far less than READ_BYTES are all there were.
        """
        ...

    def watch(self, run_id: str, wake: Callable[[], object]) -> Subscription:
        """Call ``wake``, on any thread, when the run's log or record may have changed, in any process.

        With ``ANY`` instead of an id it is called for every run.
        """
        ...

    def tail(
        self,
        after: int = 0,
        limit: int = 1000,
        *,
        types: Collection[EventType] = (),
        below: str | None = None,
    ) -> StoreFuture[Tail]:
        """Return events of all runs after a place, in store order; ``types`` selects some.

        ``below`` restricts it to a run and all its descendants. Continuing after the ``place`` of the answer misses
        nothing and repeats nothing. For a place beyond the end, as after a store was replaced, the answer is the end.
        """
        ...

    def in_flight(self, run_ids: Sequence[str]) -> StoreFuture[Mapping[str, tuple[str, ...] | None]]:
        """Return the open boundaries of live runs, according to their logs.

        None means that the log is truncated, so they are unknown. Runs that have ended, or are unknown, are left out.
        """
        ...

    # Looking

    def get(self, run_id: str) -> StoreFuture[RunRecord]:
        """Return a record, or raise RunNotFound."""
        ...

    def query(self, wanted: Filter, cursor: str | None = None, limit: int = 100) -> StoreFuture[Summaries]:
        """Return summaries of the matching runs, newest first; runs that start meanwhile do not shift the pages.

        Results and partials are not loaded.
        """
        ...

    def tree(self, run_id: str) -> StoreFuture[Sequence[RunSummary]]:
        """Return a run and all its descendants in short, parents before children, or raise RunNotFound.

        As for a list, results and partials are not loaded: a tree may have thousands of runs.
        """
        ...

    def counts(self) -> StoreFuture[Mapping[str, int]]:
        """Return how many runs have each status."""
        ...

    # Holds, audit, retention

    def place_hold(self, selector: Selector, intent: StopIntent) -> StoreFuture[Hold]:
        """Refuse new starts that a selector matches."""
        ...

    def release(self, hold_id: str, actor: str | None = None) -> StoreFuture[Hold]:
        """Remove a hold and return it, or raise HoldNotFound."""
        ...

    def holds(self) -> StoreFuture[Sequence[Hold]]:
        """Return the holds that are in force, oldest first."""
        ...

    def audit(self, after: int = 0, limit: int = 100) -> StoreFuture[Sequence[AuditEntry]]:
        """Return audit entries with a higher number, in order.

        The ``result`` of the stop of one run has the ``owner`` of that run, or of the stop if it waits for a run.
        """
        ...

    def purge(self, before: float, limit: int = 1000) -> StoreFuture[int]:
        """Delete trees that ended before a time, with their events, and return the number of runs."""
        ...

"""The Store protocol: what every engine that keeps runs must do, and do atomically.

A call either happens as a whole or not at all, in the order in which one process made its calls, and its reply comes
when it is durable. Times are of the store's clock. The stored status is the truth; being told of a change (``hints``,
``watch``) is speed and may fail, so workers read again on every heartbeat.

``testing.StoreContract`` is the same in tests.
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
from stoppable.stores.reply import Reply

EVENTS_KEPT = 10_000
"""How many events of one run are kept before its log is truncated."""

READ_BYTES = 262_144
"""How much of a log one call loads: events of a megabyte must not become many in memory at once."""

wall_clock: Callable[[], float] = time.time  # noqa: TID251 - people read these times; leases go by a clock of the boot
"""Seconds since 1970."""

KEYS_KEPT = 86_400.0
"""Seconds by which the key of a stop outlives the runs it stopped: whoever retries has given up by then."""

TOMBSTONE_SECONDS = 60.0
"""How long a stop that came before its run waits for it."""

NEXT_TURN_SECONDS = 5.0
"""How long a stop of a conversation that has had runs waits for the next one: one that came a moment too late for the
last turn must not meet what its user asks for half a minute later."""


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
    """What became of a start: ``created`` is False if the same request had started it before.

    A record whose status is ``stopped`` was born stopped: its parent was stopping, or its own stop had come first.
    """

    record: RunRecord
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What came to the logs of many runs, in the order in which it came; ``place`` is how far that goes."""

    place: int
    events: tuple[tuple[int, Event], ...] = ()
    """Each with its own place."""
    has_more: bool = False


class Subscription(Protocol):
    """Something that is called until it is closed."""

    def close(self) -> None:
        """Stop being called; one more call may be on its way."""
        ...


class Store(Protocol):
    """Keeps runs. Threads and event loops may share one."""

    # Its life

    def open(self) -> None:
        """Connect; may block for a moment. Raises StoreError, which says what to do."""
        ...

    def close(self) -> None:
        """Finish what was asked and disconnect; may block for a moment."""
        ...

    def now(self) -> float:
        """Return the time of the store's clock, in seconds since 1970."""
        ...

    @property
    def inherited(self) -> tuple[int, ...]:
        """The descriptors that a process which a worker starts is given: while it lives, the worker is not dead."""
        ...

    # Workers

    def open_worker(self, info: WorkerInfo, ttl: float) -> Reply[None]:
        """Give a process its lease, stamped now: a worker that dies before its first heartbeat is seen too.

        Again, it renews the lease; the id of a worker that was closed or reaped is Fenced for good.
        """
        ...

    def heartbeat(self, worker: str, ttl: float) -> Reply[Sequence[Intent]]:
        """Renew the lease and return every stop that is not yet acknowledged; raises Fenced once it was reaped."""
        ...

    def intents(self, worker: str) -> Reply[Sequence[Intent]]:
        """Return every stop that is not yet acknowledged, as a heartbeat does, and renew nothing: for a hint."""
        ...

    def close_worker(self, worker: str) -> Reply[None]:
        """Give the lease back; runs that it leaves behind have nobody and are reaped at once, as proven dead."""
        ...

    def hints(self, worker: str, wake: Callable[[], object]) -> Subscription:
        """Call ``wake``, on any thread, when there may be a stop for a worker; may miss some and repeat others.

        It must not wait for a reply: it may be called on the thread that makes the calls.
        """
        ...

    def reap(self, limit: int = 100, *, expired: bool = True) -> Reply[Sequence[RunRecord]]:
        """End the runs of workers that are gone, and return them.

        Proven dead: ``stopped`` if a stop was pending, otherwise ``failed``. A lease that ran out proves nothing:
        ``lost``, and only if ``expired`` is asked for; then every worker without a lease is fenced, also if the limit
        leaves some of their runs for the next time. Whoever reaps waits one TTL after its own start before it asks.
        """
        ...

    # Runs

    def register(self, record: RunRecord, request: str) -> Reply[Registered]:
        """Keep a new run. ``request`` is a digest of what was asked for.

        The same id with the same request and owner is the same run, with another one RunConflict. A worker without a
        lease is Fenced. A hold that matches raises RunHeld, unless it is a child: its run was let in. Under a parent
        that is stopping or over, or where a stop of its id or of its key came first, it is born stopped.

        A record that is ``running`` tells of a child that its worker has begun already: it gets its parent's stop, if
        there is one, and ends as its worker says.
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
        if_unknown_hold: bool = False,
        asked_at: float | None = None,
    ) -> Reply[StopResult]:
        """Keep a stop of a run, or of all live ones that a selector matches, with their subtrees; then tell workers.

        The answer names each run that a selector matches, but for those below another one that it matches. The mode of
        a run's stop only rises and its first reason stays. The same ``idempotency_key`` of the same ``owner`` again
        returns the first answer. A hold is placed before the runs are listed, and needs a selector. With ``dry_run``
        nothing changes. A run of another ``owner`` than a given one is RunNotFound, and no hold refuses his starts.

        With ``if_unknown_hold`` a stop of an unknown id waits TOMBSTONE_SECONDS for its run, if it has that owner. So
        does one of a key that has no live run, for the next run of that key, or NEXT_TURN_SECONDS if there were runs of
        it before; the selector has nothing but the key and an owner then. To look and to wait is one step: no start
        comes between.

        ``asked_at`` is when it was asked for, if some of its runs were told at once: before that nobody was.
        """
        ...

    def acknowledge(self, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> Reply[None]:
        """Note that the gate is closed for stops up to a mode, and keep the receipt so far.

        The gates of the run's descendants on the same worker were closed by the same stop: theirs are acknowledged too.
        """
        ...

    def finish(
        self,
        run_id: str,
        epoch: int,
        outcome: OutcomeRecord,
        receipt: Receipt | None,
        events: Sequence[Draft] = (),
    ) -> Reply[RunRecord]:
        """Write the terminal status if there is none (G2), append the last events and ``done``, and bump the epoch.

        Returns what is kept, be it somebody else's: then this report becomes a ``late`` event (G15). A stop that the
        worker gave no receipt for gets one from what is kept.
        """
        ...

    # Events

    def append(self, run_id: str, epoch: int, events: Sequence[Draft]) -> Reply[int]:
        """Add to a run's log and return the sequence number of the last; raises Fenced with an old epoch.

        A ``status`` event moves the record along the transition table, an ``annotated`` one adds to its metadata.
        Once EVENTS_KEPT are there, one ``truncated`` is added and only statuses are kept.
        """
        ...

    def read(self, run_id: str, after: int = 0, limit: int = 1000) -> Reply[Sequence[Event]]:
        """Return events with a higher sequence number, in order: so many, or fewer if they are large.

        What has to be loaded is about READ_BYTES, and one event at least; whoever wants all reads until nothing comes.
        Fewer than ``limit`` that are far from READ_BYTES are all there were.
        """
        ...

    def watch(self, run_id: str, wake: Callable[[], object]) -> Subscription:
        """Call ``wake``, on any thread, when the run's log or record may have changed, in whatever process.

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
    ) -> Reply[Tail]:
        """Return events of all runs after a place, in the order in which they came, those of some ``types`` if given.

        ``below`` keeps it to a run and all its descendants. Whoever asks again after the ``place`` of the answer misses
        nothing and gets nothing twice. A place beyond the end, as after a store was replaced, is answered with the end.
        """
        ...

    def in_flight(self, run_ids: Sequence[str]) -> Reply[Mapping[str, tuple[str, ...] | None]]:
        """Return the boundaries of live runs that were entered and not left, as their logs tell it.

        None stands for a log that is truncated, and so does not tell. Runs that are over, or unknown, are left out.
        """
        ...

    # Looking

    def get(self, run_id: str) -> Reply[RunRecord]:
        """Return a record, or raise RunNotFound."""
        ...

    def query(self, wanted: Filter, cursor: str | None = None, limit: int = 100) -> Reply[Summaries]:
        """Return the runs that match in short, newest first; a run that starts meanwhile shifts no page.

        Results and partials are not loaded for it, however large they are.
        """
        ...

    def tree(self, run_id: str) -> Reply[Sequence[RunSummary]]:
        """Return a run and all its descendants in short, parents before children, or raise RunNotFound.

        As for a list, results and partials are not loaded: a tree may have thousands of runs.
        """
        ...

    def counts(self) -> Reply[Mapping[str, int]]:
        """Return how many runs have each status."""
        ...

    # Holds, audit, retention

    def place_hold(self, selector: Selector, intent: StopIntent) -> Reply[Hold]:
        """Refuse new starts that a selector matches."""
        ...

    def release(self, hold_id: str, actor: str | None = None) -> Reply[Hold]:
        """Take a hold away and return it, or raise HoldNotFound."""
        ...

    def holds(self) -> Reply[Sequence[Hold]]:
        """Return the holds that are in force, oldest first."""
        ...

    def audit(self, after: int = 0, limit: int = 100) -> Reply[Sequence[AuditEntry]]:
        """Return who stopped, held and released what, with a higher number, in order."""
        ...

    def purge(self, before: float, limit: int = 1000) -> Reply[int]:
        """Forget trees that ended before a time, with their events, and say how many runs that were."""
        ...

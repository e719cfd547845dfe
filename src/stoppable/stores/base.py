"""The Store protocol: what every store must do, atomically; what its calls return, and whom it notifies.

Each call is atomic, calls of one process take effect in order, and a call is answered when it is durable. Times come
from the store's clock. Notifications of changes (``hints``, ``watch``) are only for speed and may be lost, so workers
read the store again on every heartbeat. ``testing.StoreContract`` tests all of this.

A call returns a StoreFuture, which can be awaited in any event loop or waited for on a thread, so a store needs to know
neither. Listeners are the callbacks of one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from stoppable._core.stop import Receipt
from stoppable._core.values import Mode
from stoppable.errors import StoreError
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

T = TypeVar("T")

_logger = logging.getLogger("stoppable")

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


Wake: TypeAlias = Callable[[Sequence[Intent] | None], object]
"""Called when a worker may have pending stops, with those that are known; None if the store must be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
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

    def hints(self, worker: str, wake: Wake) -> Subscription:
        """Call ``wake``, on any thread, when there may be a stop for a worker; may miss some and repeat others.

        It gets the new stops if the store knows them without looking, otherwise None: then ``intents`` returns them.
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

    def register(self, record: RunRecord, request: str) -> StoreFuture[Registration]:
        """Store a new run. ``request`` is a digest of the start.

        The same id with the same request and owner returns the existing run; otherwise an existing id raises
        RunConflict. A worker without a lease gets Fenced. A matching hold raises RunHeld, except for child runs. If the
        parent is stopping or has ended, or a stop of this id or key came first, the run is stopped before it begins.

        A record with the status ``running`` is a child that its worker has already begun: it gets the stop of its
        parent, if there is one, and its worker reports its end.
        """
        ...

    def request_stop(self, request: StopRequest) -> StoreFuture[StopResult]:
        """Store a stop of a run, or of all live runs that a selector matches, with their subtrees; then notify workers.

        The answer lists each matching run, except those below another match. The mode of a run's stop only rises, and
        its first reason stays. A repeated ``idempotency_key`` of the same ``owner`` returns the first answer. A hold
        needs a selector, and is placed before the runs are listed. With ``dry_run`` nothing changes. With an ``owner``,
        runs of other owners raise RunNotFound, and a hold never affects other owners.

        With ``if_unknown="wait"`` a stop of an unknown id waits TOMBSTONE_SECONDS for a run with that id and owner. A
        stop by a key without live runs waits for the next run of that key: TOMBSTONE_SECONDS, or NEXT_TURN_SECONDS if
        the key has had runs; its selector may contain only the key and an owner. With None it waits only for the first
        run of a key, with ``"ignore"`` for none. Looking for runs and waiting is one atomic step: no start comes in
        between.

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


_lock = threading.Lock()  # one for all futures: it is held only for a few lines


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


class StoreFuture(Generic[T]):
    """The result of one call. The call is made even if its caller stops waiting."""

    __slots__ = ("_error", "_is_settled", "_value", "_waiters")

    _value: T

    def __init__(self) -> None:
        self._is_settled = False
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None] | Callable[[], object]] | None = None

    @classmethod
    def of(cls, call: Callable[[], T]) -> StoreFuture[T]:
        """Make a call now, and return a future with its result or error."""
        future: StoreFuture[T] = cls()
        try:
            future._value = call()
        except Exception as error:
            future._error = error
        future._is_settled = True
        return future

    @classmethod
    def failed(cls, error: BaseException) -> StoreFuture[T]:
        """Return a future that raises an error."""
        future: StoreFuture[T] = cls()
        future._error, future._is_settled = error, True
        return future

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_settled:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._add(waiter):
                yield from waiter
        return self._get()

    def result(self, timeout: float | None = None) -> T:
        """Wait on this thread for the result; raises StoreError after ``timeout`` seconds."""
        if not self._is_settled:
            event = threading.Event()
            if self._add(event.set) and not event.wait(timeout):
                raise StoreError(f"the store did not answer within {timeout} seconds")
        return self._get()

    def then(self, call: Callable[[StoreFuture[T]], object]) -> None:
        """Call an internal function when the result is there, on any thread; at once if it is there already."""
        if not self._add(lambda: call(self)):
            call(self)

    def _add(self, waiter: asyncio.Future[None] | Callable[[], object]) -> bool:
        with _lock:
            if self._is_settled:
                return False
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            return True

    def _get(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value


Settled = tuple[StoreFuture[Any], Any, BaseException | None]


def settle(answers: Iterable[Settled]) -> None:
    """Give each future its value or error, and wake each event loop once for all of them."""
    waiters: list[asyncio.Future[None] | Callable[[], object]] = []
    with _lock:
        for future, value, error in answers:
            future._value, future._error, future._is_settled = value, error, True
            if future._waiters is not None:
                waiters += future._waiters
                future._waiters = None
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for waiter in waiters:
        if isinstance(waiter, asyncio.Future):
            loops.setdefault(waiter.get_loop(), []).append(waiter)
        else:
            _call(waiter)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
            loop.call_soon_threadsafe(_resolve, futures)


def _call(waiter: Callable[[], object]) -> None:
    try:
        waiter()
    except Exception:  # the others must be called too
        _logger.exception("a callback that waited for the store failed")


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


ANY = ""
"""A name that stands for every other name."""


class Listeners:
    """Internal callbacks by name; called outside every lock, on the thread that made the change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, list[_Listener]] = {}

    def add(self, name: str, call: Callable[..., object]) -> _Listener:
        """Call a function on changes of a name, until it is closed."""
        listener = _Listener(self, name, call)
        with self._lock:
            self._calls.setdefault(name, []).append(listener)
        return listener

    def __bool__(self) -> bool:
        return bool(self._calls)

    def names(self) -> list[str]:
        """Return the names with listeners."""
        with self._lock:
            return list(self._calls)

    def tell(self, names: Collection[str], *news: object) -> None:
        """Call the listeners of these names, with what is known of the change."""
        if self._calls:
            with self._lock:
                listeners = [listener for name in names for listener in self._calls.get(name, ())]
                if ANY in self._calls and names and ANY not in names:
                    listeners += self._calls[ANY]
            for listener in listeners:
                try:
                    listener.call(*news)
                except Exception:  # it may wake a closed loop; the write stands, and the other listeners must be called
                    _logger.exception("a listener to %s failed", listener.name)

    def _remove(self, listener: _Listener) -> None:
        with self._lock, contextlib.suppress(KeyError, ValueError):
            listeners = self._calls[listener.name]
            listeners.remove(listener)
            if not listeners:
                del self._calls[listener.name]


class _Listener:
    __slots__ = ("_listeners", "call", "name")

    def __init__(self, listeners: Listeners, name: str, call: Callable[..., object]) -> None:
        self._listeners = listeners
        self.name: str = name
        self.call: Callable[..., object] = call

    def close(self) -> None:
        """Stop being called."""
        self._listeners._remove(self)

"""Keeps runs in the memory of this process; they are lost when it ends."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Mode, Status, new_id
from stoppable.errors import Fenced, HoldNotFound, RunConflict, RunNotFound
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
    StopAnswer,
    StopIntent,
    StopRequest,
    StopResult,
    Summaries,
    replace_fields,
    to_json,
)
from stoppable.stores import rules
from stoppable.stores.base import (
    EVENTS_KEPT,
    KEYS_KEPT,
    TOMBSTONE_SECONDS,
    Intent,
    Listeners,
    Registration,
    StoreFuture,
    Subscription,
    Tail,
    Wake,
    WorkerInfo,
    wall_clock,
)

StopAddress = tuple[str, str]
"""What a stop waits for: a run (``"run"``, its id), or the next one of a conversation (``"key"``, its key)."""

_FEW = 8


class Tombstones:
    """Waiting stops by address and owner, each with the time until when it waits."""

    __slots__ = ("_most", "_waiting")

    def __init__(self) -> None:
        self._most = _FEW  # when there are so many, expired ones are removed
        self._waiting: dict[tuple[StopAddress, str | None], tuple[float, StopIntent]] = {}

    def add(self, address: StopAddress, owner: str | None, intent: StopIntent, now: float, seconds: float) -> float:
        """Let a stop wait, and return until when; it is combined with one that waits already."""
        if len(self._waiting) >= self._most:
            self._waiting = {key: waiting for key, waiting in self._waiting.items() if waiting[0] > now}
            self._most = max(_FEW, 2 * len(self._waiting))
        earlier_until, earlier = self._waiting.get((address, owner), (now, None))
        earlier = earlier if earlier_until > now else None
        until = max(earlier_until, now + seconds)
        self._waiting[address, owner] = (until, rules.escalate(earlier, intent))
        return until

    def take(self, addresses: Iterable[StopAddress], owner: str | None, now: float) -> StopIntent | None:
        """Remove the stops that waited for a run with these addresses, and return them combined."""
        first: StopIntent | None = None
        for address in addresses:
            for stop_owner in dict.fromkeys((None, owner)):
                until, stop = self._waiting.pop((address, stop_owner), (now, None))
                if until > now and stop is not None:
                    first = rules.escalate(first, stop)
        return first


class AllEvents:
    """Events with their places; the place of a deleted event is not reused."""

    __slots__ = ("_events", "_first")

    def __init__(self) -> None:
        self._events: list[Event | None] = []
        self._first = 0  # how many were deleted before the first one

    def add(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)

    @property
    def place(self) -> int:
        """The place of the last event."""
        return self._first + len(self._events)

    def tail(self, after: int, limit: int, types: Collection[EventType], is_meant: Callable[[str], bool]) -> Tail:
        """Return events after a place."""
        events: list[tuple[int, Event]] = []
        start = min(max(after, self._first), self.place)
        for place, event in enumerate(self._events[start - self._first :], start + 1):
            if event is not None and (not types or event.type in types) and is_meant(event.run_id):
                if len(events) == limit:
                    return Tail(place=events[-1][0] if events else start, events=tuple(events), has_more=True)
                events.append((place, event))
        return Tail(place=self.place, events=tuple(events))

    def forget(self, run_ids: Collection[str]) -> None:
        """Delete the events of runs."""
        if not run_ids:
            return
        self._events = [None if event is None or event.run_id in run_ids else event for event in self._events]
        first = next((number for number, event in enumerate(self._events) if event is not None), len(self._events))
        self._first += first
        del self._events[:first]


StoredAnswer = tuple[float, list[tuple[str, Answer]], Hold | None, float | None]
"""An answered stop: when, the answer for each run, the hold that it placed, and until when it waits."""


class StoredRun:
    """A run with what belongs to it."""

    __slots__ = ("children", "events", "number", "parent", "record", "request")

    def __init__(self, record: RunRecord, request: str, number: int, parent: StoredRun | None) -> None:
        self.record: RunRecord = record
        self.request: str = request
        self.number: int = number
        self.parent: StoredRun | None = parent
        self.children: list[StoredRun] = []
        self.events: list[Event] = []
        if parent is not None:
            parent.children.append(self)

    def current(self) -> RunRecord:
        """Return the current record."""
        if self.record.last_event != len(self.events):
            self.record = replace_fields(self.record, last_event=len(self.events))
        return self.record

    def subtree(self) -> list[StoredRun]:
        """Return the run and all its descendants, parents first."""
        nodes: list[StoredRun] = [self]
        for node in nodes:  # grows while it is walked
            nodes += node.children
        return nodes

    def above(self) -> Iterator[str]:
        """Yield the ids of its ancestors."""
        node = self.parent
        while node is not None:
            yield node.record.id
            node = node.parent


def old_trees(runs: Mapping[str, StoredRun], before: float, limit: int) -> set[str]:
    """Return the runs of whole trees that ended before a time; starts no further tree after ``limit`` runs."""
    run_ids: set[str] = set()
    for root in [run for run in runs.values() if run.record.parent_id not in runs]:
        tree = root.subtree()
        is_old = all(node.record.over and (node.record.ended_at or 0) < before for node in tree)
        if len(run_ids) < limit and is_old:
            run_ids.update(node.record.id for node in tree)
    return run_ids


P = ParamSpec("P")
T = TypeVar("T")


def _atomic(method: Callable[Concatenate[MemoryStore, P], T]) -> Callable[Concatenate[MemoryStore, P], StoreFuture[T]]:
    """Make a call under the lock, then notify the listeners of the runs and workers that it touched."""

    @functools.wraps(method)
    def call(self: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> StoreFuture[T]:
        with self._lock:
            future = StoreFuture.of(lambda: method(self, *args, **kwargs))
            touched_runs, self._touched_runs = self._touched_runs, set()
            new_stops, self._new_stops = self._new_stops, {}
        if touched_runs:
            self._watchers.tell(touched_runs)
        for worker, intents in new_stops.items():
            self._hints.tell([worker], intents)
        return future

    return call


class MemoryStore:
    """Keeps runs in memory.

    Leases can expire, but a worker is never proven dead: it lives in the same process.
    """

    def __init__(self, clock: Callable[[], float] = wall_clock, events_kept: int = EVENTS_KEPT) -> None:
        self._clock = clock
        self._lease_clock = time.monotonic if clock is wall_clock else clock  # the wall clock may be set
        self._events_kept = events_kept
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._runs: dict[str, StoredRun] = {}
        self._live: dict[str, StoredRun] = {}
        self._unacknowledged: dict[str, StoredRun] = {}  # those whose worker has not acknowledged a stop
        self._leases: dict[str, float] = {}
        self._closed_workers: set[str] = set()  # workers that released their lease
        self._silent_workers: set[str] = set()  # workers whose lease expired: fenced
        self._tombstones = Tombstones()
        self._holds: dict[str, Hold] = {}
        self._audit: list[AuditEntry] = []
        # By owner and key: when, and what the answer was.
        self._earlier_answers: dict[tuple[str | None, str], StoredAnswer] = {}
        self._hints, self._watchers = Listeners(), Listeners()
        self._all_events = AllEvents()
        self._touched_runs: set[str] = set()
        self._new_stops: dict[str, list[Intent]] = {}

    # Opening and closing

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def now(self) -> float:
        """Return the time."""
        return self._clock()

    @property
    def inherited(self) -> tuple[int, ...]:
        """None: no process outlives this store."""
        return ()

    # Workers

    @_atomic
    def open_worker(self, info: WorkerInfo, ttl: float) -> None:
        """Give a process a lease."""
        if info.id in self._closed_workers or info.id in self._silent_workers:
            raise Fenced(info.id)
        self._leases[info.id] = self._lease_clock() + ttl

    @_atomic
    def heartbeat(self, worker: str, ttl: float) -> Sequence[Intent]:
        """Renew a lease, and return the pending stops."""
        if worker not in self._leases:
            raise Fenced(worker)
        self._leases[worker] = self._lease_clock() + ttl
        return self._pending_stops(worker)

    @_atomic
    def intents(self, worker: str) -> Sequence[Intent]:
        """Return the pending stops."""
        return self._pending_stops(worker)

    def _pending_stops(self, worker: str) -> list[Intent]:
        return [
            Intent(run_id=record.id, stop=record.stop)
            for run in self._unacknowledged.values()
            if (record := run.record).worker == worker and record.stop is not None
        ]

    @_atomic
    def close_worker(self, worker: str) -> None:
        """Release a lease."""
        if self._leases.pop(worker, None) is not None:
            self._closed_workers.add(worker)

    def hints(self, worker: str, wake: Wake) -> Subscription:
        """Call a function when there may be a stop for a worker."""
        return self._hints.add(worker, wake)

    @_atomic
    def reap(self, limit: int = 100, *, expired: bool = True) -> Sequence[RunRecord]:
        """End the runs of workers that are gone."""
        if expired:
            silent = [worker for worker, until in self._leases.items() if until < self._lease_clock()]
            self._silent_workers.update(silent)
            for worker in silent:
                del self._leases[worker]
        gone_workers = self._closed_workers | self._silent_workers if expired else self._closed_workers
        orphans = [run for run in self._live.values() if run.record.worker in gone_workers][:limit]
        for run in orphans:
            proven_dead = run.record.worker in self._closed_workers
            partials = [event.data for event in run.events if event.type is EventType.PARTIAL]
            record = rules.reap_record(run.record, self.now(), proven_dead=proven_dead, partials=partials)
            self._end(run, record)
        return [run.current() for run in orphans]

    # Runs

    @_atomic
    def register(self, record: RunRecord, request: str) -> Registration:
        """Store a new run."""
        earlier = self._runs.get(record.id)
        if earlier is not None:
            if earlier.request != request or earlier.record.owner != record.owner:
                raise RunConflict(record.id)
            return Registration(record=earlier.current(), created=False)
        if record.worker not in self._leases:
            raise Fenced(record.worker)
        parent = None if record.parent_id is None else self._runs.get(record.parent_id)
        if parent is None:
            rules.refuse_held(record, self._holds.values())
        now = self.now()
        root_id = record.root_id if parent is None else parent.record.root_id
        record = replace_fields(record, created_at=now, labels=dict(record.labels), root_id=root_id)
        run = StoredRun(record, request, next(self._numbers), parent)
        self._runs[record.id] = self._live[record.id] = run
        self._touched_runs.add(record.id)
        if record.status is Status.RUNNING:
            run.record = rules.start_child_record(run.record, None if parent is None else parent.record, now)
            self._add(run, [rules.status_event(run.record.status, run.record)])
            if not rules.is_answered(run.record):
                self._unacknowledged[record.id] = run
            if run.record.stop is not None and parent is not None and parent.record.worker != record.worker:
                self._wake(record.worker, record.id, run.record.stop)
        elif (stop := self._stop_that_came_first(run.record, parent, now)) is not None:
            self._end(run, rules.never_started_record(run.record, stop, now))
        return Registration(record=run.current(), created=True)

    def _stop_that_came_first(self, record: RunRecord, parent: StoredRun | None, now: float) -> StopIntent | None:
        stop = rules.stop_of_parent(None if parent is None else parent.record, now)
        if stop is not None:
            return stop
        addresses = [("run", record.id)] + ([] if record.key is None else [("key", record.key)])
        return self._tombstones.take(addresses, record.owner, now)

    def _wait_for_run(self, run_id: str, owner: str | None, intent: StopIntent) -> float:
        self._note("stop", intent, run_id, {"runs": {}, "hold": None, "owner": owner})
        return self._tombstones.add(("run", run_id), owner, intent, self.now(), TOMBSTONE_SECONDS)

    def _wait_for_key(self, selector: Selector, request: StopRequest) -> float | None:
        if not rules.waits_for_key(selector, request.owner):
            return None
        assert selector.key is not None, "it waits for one"
        owner = selector.owner if request.owner is None else request.owner
        conversation = Filter(key=selector.key, owner=owner)
        has_run = any(conversation.matches(run.record) for run in self._runs.values())
        seconds = rules.waiting_seconds(has_run=has_run, if_unknown=request.if_unknown)
        if seconds is None:
            return None
        return self._tombstones.add(("key", selector.key), owner, request.intent, self.now(), seconds)

    @_atomic
    def request_stop(self, request: StopRequest) -> StopResult:
        """Store a stop, then notify the workers."""
        target, intent, owner = request.target, request.intent, request.owner
        if request.idempotency_key is not None and (owner, request.idempotency_key) in self._earlier_answers:
            return self._answer_again(target, *self._earlier_answers[owner, request.idempotency_key][1:])
        rules.check_waiting(request)
        on_hold = rules.hold_selector(target, owner) if request.hold else None
        hold = None if on_hold is None else self._place(on_hold, intent, dry_run=request.dry_run)
        targets = self._select(target, owner)
        if targets is None:
            assert isinstance(target, str), "a selector may choose nothing, but it is not unknown"
            if request.if_unknown != "wait":
                raise RunNotFound(target)
            return StopResult(waits_until=None if request.dry_run else self._wait_for_run(target, owner, intent))
        answers = [(run, rules.answer_of(run.record, intent)) for run in targets]
        until: float | None = None
        if not request.dry_run:
            at = rules.request_time(request.asked_at, self.now())
            for run in targets:
                for node in run.subtree():
                    self._stop(node, intent, at)
            if not targets and request.if_unknown != "ignore" and isinstance(target, Selector):
                until = self._wait_for_key(target, request)
            by_id = [(run.record.id, answer) for run, answer in answers]
            if request.idempotency_key is not None:
                self._earlier_answers[owner, request.idempotency_key] = (self.now(), by_id, hold, until)
            result: dict[str, object] = {"runs": dict(by_id), "hold": hold and hold.id}
            if isinstance(target, str):
                result["owner"] = targets[0].record.owner
            self._note("stop", intent, target, result)
        return self._result(answers, hold, until)

    def _select(self, target: str | Selector, owner: str | None) -> list[StoredRun] | None:
        if isinstance(target, Selector):
            matches = {
                run_id: run
                for run_id, run in self._live.items()
                if target.matches(
                    owner=run.record.owner, labels=run.record.labels, agent=run.record.name, key=run.record.key
                )
                and owner in {None, run.record.owner}
            }
            return [run for run in matches.values() if matches.keys().isdisjoint(run.above())]
        run = self._runs.get(target)
        return None if run is None or owner not in {None, run.record.owner} else [run]

    def _answer_again(
        self,
        target: str | Selector,
        answers: Sequence[tuple[str, Answer]],
        hold: Hold | None,
        until: float | None,
    ) -> StopResult:
        stored_answers = [(self._runs[run_id], answer) for run_id, answer in answers if run_id in self._runs]
        if isinstance(target, str) and not stored_answers:
            raise RunNotFound(target)  # it was purged
        return self._result(stored_answers, hold, until)

    @staticmethod
    def _result(
        answers: Sequence[tuple[StoredRun, Answer]], hold: Hold | None, until: float | None = None
    ) -> StopResult:
        return StopResult(
            answers=tuple(StopAnswer(record=run.current(), answer=answer) for run, answer in answers),
            hold=hold,
            waits_until=until,
        )

    def _stop(self, run: StoredRun, intent: StopIntent, at: float) -> None:
        record = run.record
        stop = rules.escalate(record.stop, intent)
        if record.over or stop is record.stop:
            return
        requested = at if record.stop_requested_at is None else record.stop_requested_at
        run.record = replace_fields(record, stop=stop, stop_requested_at=requested)
        if not rules.is_answered(run.record):
            self._unacknowledged[record.id] = run
        if record.status is not Status.PENDING:
            self._add(run, [replace(rules.status_of_stop(Status.STOPPING, stop), at=at)])
        self._touched_runs.add(record.id)
        self._wake(record.worker, record.id, stop)

    def _wake(self, worker: str, run_id: str, stop: StopIntent) -> None:
        self._new_stops.setdefault(worker, []).append(Intent(run_id=run_id, stop=stop))

    @_atomic
    def acknowledge(self, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> None:
        """Record that a gate is closed."""
        run = self._live_run(run_id, epoch)
        run.record = replace_fields(run.record, receipt=rules.with_request_time(receipt, run.record.stop_requested_at))
        self._touched_runs.add(run_id)
        for node in run.subtree():
            if node is run or rules.is_closed_with(node.record, run.record):
                earlier_mode = node.record.acknowledged
                node.record = replace_fields(
                    node.record, acknowledged=mode if earlier_mode is None else max(earlier_mode, mode)
                )
                if rules.is_answered(node.record):
                    self._unacknowledged.pop(node.record.id, None)

    @_atomic
    def finish(
        self,
        run_id: str,
        epoch: int,
        outcome: OutcomeRecord,
        receipt: Receipt | None,
        events: Sequence[Draft] = (),
    ) -> RunRecord:
        """Write the terminal status, if there is none."""
        run = self._run(run_id)
        rules.check_end(outcome, events)
        if run.record.over or run.record.epoch != epoch:
            run.record = rules.note_late_end(run.record, outcome, self.now())
            self._add(run, [rules.late_event(outcome)])
        else:
            self._add(run, events)
            self._end(run, rules.finish_record(run.record, outcome, receipt, self.now()))
        return run.current()

    def _end(self, run: StoredRun, record: RunRecord) -> None:
        assert record.outcome is not None, "how it ended"
        run.record = record
        self._live.pop(record.id, None)
        self._unacknowledged.pop(record.id, None)
        self._add(run, [rules.status_event(record.status, record), rules.done_event(record.outcome)])

    # Events

    @_atomic
    def append(self, run_id: str, epoch: int, events: Sequence[Draft]) -> int:
        """Append to a run's log."""
        rules.check_statuses(events)
        return self._add(self._live_run(run_id, epoch), events)

    def _add(self, run: StoredRun, drafts: Sequence[Draft]) -> int:
        log, now = run.events, self.now()
        for draft in drafts:
            if draft.type in rules.MOVES and not run.record.over:
                run.record = rules.apply_event(run.record, draft, now)
            if len(log) >= self._events_kept and draft.type not in rules.ALWAYS_KEPT:
                if any(event.type is EventType.TRUNCATED for event in log[self._events_kept :]):
                    continue
                draft = Draft(type=EventType.TRUNCATED)  # noqa: PLW2901 - in its place
            at = now if draft.at is None else draft.at
            log.append(Event(run_id=run.record.id, seq=len(log) + 1, at=at, type=draft.type, data=dict(draft.data)))
            self._all_events.add(log[-1])
        self._touched_runs.add(run.record.id)
        return len(log)

    @_atomic
    def read(self, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        """Return a part of a run's log."""
        return self._run(run_id).events[max(after, 0) : max(after, 0) + limit]

    @_atomic
    def tail(
        self, after: int = 0, limit: int = 1000, *, types: Collection[EventType] = (), below: str | None = None
    ) -> Tail:
        """Return events of many runs in order."""
        if below is None:
            return self._all_events.tail(after, limit, types, lambda _: True)
        run_ids = {node.record.id for node in self._run(below).subtree()}
        return self._all_events.tail(after, limit, types, run_ids.__contains__)

    @_atomic
    def in_flight(self, run_ids: Sequence[str]) -> Mapping[str, tuple[str, ...] | None]:
        """Return the open boundaries of live runs."""
        return {run_id: rules.open_boundaries(self._live[run_id].events) for run_id in run_ids if run_id in self._live}

    def watch(self, run_id: str, wake: Callable[[], object]) -> Subscription:
        """Call a function when a run may have changed."""
        return self._watchers.add(run_id, wake)

    # Looking

    @_atomic
    def get(self, run_id: str) -> RunRecord:
        """Return a record."""
        return self._run(run_id).current()

    @_atomic
    def query(self, wanted: Filter, cursor: str | None = None, limit: int = 100) -> Summaries:
        """Return the runs that match, newest first."""
        below, limit = rules.cursor_number(cursor), rules.page_size(limit)
        newest = (run for run in reversed(self._runs.values()) if run.number < below and wanted.matches(run.record))
        page = list(itertools.islice(newest, limit + 1))
        more = str(page[limit - 1].number) if len(page) > limit else None
        return Summaries(runs=tuple(RunSummary.of(run.record) for run in page[:limit]), cursor=more)

    @_atomic
    def tree(self, run_id: str) -> Sequence[RunSummary]:
        """Return a run and all its descendants."""
        return [RunSummary.of(run.record) for run in self._run(run_id).subtree()]

    @_atomic
    def counts(self) -> Mapping[str, int]:
        """Return how many runs have each status."""
        return Counter(run.record.status.value for run in self._runs.values())

    def _run(self, run_id: str) -> StoredRun:
        try:
            return self._runs[run_id]
        except KeyError:
            raise RunNotFound(run_id) from None

    def _live_run(self, run_id: str, epoch: int) -> StoredRun:
        run = self._run(run_id)
        if run.record.epoch != epoch or run.record.over:
            raise Fenced(run_id)
        return run

    # Holds, audit, retention

    @_atomic
    def place_hold(self, selector: Selector, intent: StopIntent) -> Hold:
        """Refuse new starts."""
        hold = self._place(selector, intent, dry_run=False)
        self._note("hold", intent, selector, {"hold": hold.id})
        return hold

    def _place(self, selector: Selector, intent: StopIntent, *, dry_run: bool) -> Hold:
        hold = Hold(id=new_id(), selector=selector, reason=intent.reason, created_at=self.now())
        if not dry_run:
            self._holds[hold.id] = hold
        return hold

    @_atomic
    def release(self, hold_id: str, actor: str | None = None) -> Hold:
        """Remove a hold."""
        if hold_id not in self._holds:
            raise HoldNotFound(hold_id)
        hold = self._holds.pop(hold_id)
        intent = StopIntent(reason=replace(hold.reason, actor=actor))
        self._note("release", intent, hold.selector, {"hold": hold.id})
        return hold

    @_atomic
    def holds(self) -> Sequence[Hold]:
        """Return the holds that are in force."""
        return list(self._holds.values())

    @_atomic
    def audit(self, after: int = 0, limit: int = 100) -> Sequence[AuditEntry]:
        """Return the audit."""
        return self._audit[max(after, 0) : max(after, 0) + limit]

    def _note(self, action: str, intent: StopIntent, target: str | Selector, result: Mapping[str, object]) -> None:
        entry = rules.audit_entry(len(self._audit) + 1, self.now(), action, intent, target, to_json(result))
        self._audit.append(entry)

    @_atomic
    def purge(self, before: float, limit: int = 1000) -> int:
        """Delete trees that ended before a time, and old idempotency keys."""
        self._earlier_answers = {
            key: answer for key, answer in self._earlier_answers.items() if answer[0] >= before - KEYS_KEPT
        }
        run_ids = old_trees(self._runs, before, limit)
        for run_id in run_ids:
            del self._runs[run_id]
        self._all_events.forget(run_ids)
        return len(run_ids)

"""The Store protocol over dictionaries."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from stoppable._core.ids import new_id
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer, Receipt
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
    StopResult,
    Summaries,
    changed,
    to_json,
)
from stoppable.stores import rules
from stoppable.stores.base import (
    EVENTS_KEPT,
    KEYS_KEPT,
    TOMBSTONE_SECONDS,
    Intent,
    Registered,
    Subscription,
    Tail,
    WorkerInfo,
    wall_clock,
)
from stoppable.stores.future import StoreFuture
from stoppable.stores.listeners import Listeners
from stoppable.stores.memory.all_events import AllEvents
from stoppable.stores.memory.runs import Answered, StoredRun, old_trees
from stoppable.stores.memory.tombstones import Tombstones

P = ParamSpec("P")
T = TypeVar("T")


def _atomic(method: Callable[Concatenate[MemoryStore, P], T]) -> Callable[Concatenate[MemoryStore, P], StoreFuture[T]]:
    """Make a call under the lock, then notify the listeners of the runs and workers that it touched."""

    @functools.wraps(method)
    def call(self: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> StoreFuture[T]:
        with self._lock:
            future = StoreFuture.of(lambda: method(self, *args, **kwargs))
            touched, self._touched = self._touched, set()
            woken, self._woken = self._woken, set()
        self._watchers.tell(touched)
        self._hints.tell(woken)
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
        self._closed: set[str] = set()  # workers that released their lease
        self._silent: set[str] = set()  # workers whose lease expired: fenced
        self._tombstones = Tombstones()
        self._holds: dict[str, Hold] = {}
        self._audit: list[AuditEntry] = []
        # By owner and key: when, and what the answer was.
        self._answered: dict[tuple[str | None, str], Answered] = {}
        self._hints, self._watchers = Listeners(), Listeners()
        self._all_events = AllEvents()
        self._touched: set[str] = set()
        self._woken: set[str] = set()

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
        if info.id in self._closed or info.id in self._silent:
            raise Fenced(info.id)
        self._leases[info.id] = self._lease_clock() + ttl

    @_atomic
    def heartbeat(self, worker: str, ttl: float) -> Sequence[Intent]:
        """Renew a lease, and return the pending stops."""
        if worker not in self._leases:
            raise Fenced(worker)
        self._leases[worker] = self._lease_clock() + ttl
        return self._to_stop(worker)

    @_atomic
    def intents(self, worker: str) -> Sequence[Intent]:
        """Return the pending stops."""
        return self._to_stop(worker)

    def _to_stop(self, worker: str) -> list[Intent]:
        return [
            Intent(run_id=record.id, stop=record.stop)
            for kept in self._unacknowledged.values()
            if (record := kept.record).worker == worker and record.stop is not None
        ]

    @_atomic
    def close_worker(self, worker: str) -> None:
        """Release a lease."""
        if self._leases.pop(worker, None) is not None:
            self._closed.add(worker)

    def hints(self, worker: str, wake: Callable[[], object]) -> Subscription:
        """Call a function when there may be a stop for a worker."""
        return self._hints.add(worker, wake)

    @_atomic
    def reap(self, limit: int = 100, *, expired: bool = True) -> Sequence[RunRecord]:
        """End the runs of workers that are gone."""
        if expired:
            silent = [worker for worker, until in self._leases.items() if until < self._lease_clock()]
            self._silent.update(silent)
            for worker in silent:
                del self._leases[worker]
        gone = self._closed | self._silent if expired else self._closed
        found = [kept for kept in self._live.values() if kept.record.worker in gone][:limit]
        for kept in found:
            proven_dead = kept.record.worker in self._closed
            partials = [event.data for event in kept.events if event.type is EventType.PARTIAL]
            record = rules.given_up(kept.record, self.now(), proven_dead=proven_dead, partials=partials)
            self._end(kept, record)
        return [kept.current() for kept in found]

    # Runs

    @_atomic
    def register(self, record: RunRecord, request: str) -> Registered:
        """Store a new run."""
        known = self._runs.get(record.id)
        if known is not None:
            if known.request != request or known.record.owner != record.owner:
                raise RunConflict(record.id)
            return Registered(record=known.current(), created=False)
        if record.worker not in self._leases:
            raise Fenced(record.worker)
        parent = None if record.parent_id is None else self._runs.get(record.parent_id)
        if parent is None:
            rules.refuse_held(record, self._holds.values())
        now = self.now()
        root_id = record.root_id if parent is None else parent.record.root_id
        record = changed(record, created_at=now, labels=dict(record.labels), root_id=root_id)
        kept = StoredRun(record, request, next(self._numbers), parent)
        self._runs[record.id] = self._live[record.id] = kept
        self._touched.add(record.id)
        if record.status is Status.RUNNING:
            kept.record = rules.begun(kept.record, None if parent is None else parent.record, now)
            self._add(kept, [rules.status_event(kept.record.status, kept.record)])
            if not rules.is_answered(kept.record):
                self._unacknowledged[record.id] = kept
            if kept.record.stop is not None and parent is not None and parent.record.worker != record.worker:
                self._woken.add(record.worker)
        elif (stop := self._stop_that_came_first(kept.record, parent, now)) is not None:
            self._end(kept, rules.born_stopped(kept.record, stop, now))
        return Registered(record=kept.current(), created=True)

    def _stop_that_came_first(self, record: RunRecord, parent: StoredRun | None, now: float) -> StopIntent | None:
        stop = rules.stop_of_parent(None if parent is None else parent.record, now)
        if stop is not None:
            return stop
        addresses = [("run", record.id)] + ([] if record.key is None else [("key", record.key)])
        return self._tombstones.take(addresses, record.owner, now)

    def _wait_for_run(self, run_id: str, owner: str | None, intent: StopIntent) -> float:
        self._note("stop", intent, run_id, {"runs": {}, "hold": None, "owner": owner})
        return self._tombstones.add(("run", run_id), owner, intent, self.now(), TOMBSTONE_SECONDS)

    def _wait_for_key(
        self, selector: Selector, owner: str | None, intent: StopIntent, *, if_unknown_hold: bool | None
    ) -> float | None:
        if not rules.waits_for_key(selector, owner):
            return None
        assert selector.key is not None, "it waits for one"
        owner = selector.owner if owner is None else owner
        conversation = Filter(key=selector.key, owner=owner)
        has_run = any(conversation.matches(kept.record) for kept in self._runs.values())
        seconds = rules.waiting_seconds(has_run=has_run, if_unknown_hold=if_unknown_hold)
        if seconds is None:
            return None
        return self._tombstones.add(("key", selector.key), owner, intent, self.now(), seconds)

    @_atomic
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
    ) -> StopResult:
        """Store a stop, then notify the workers."""
        if idempotency_key is not None and (owner, idempotency_key) in self._answered:
            return self._answer_again(target, *self._answered[owner, idempotency_key][1:])
        rules.check_waiting(target, if_unknown_hold=if_unknown_hold)
        held = rules.held_by(target, owner) if hold else None
        placed = None if held is None else self._place(held, intent, dry_run=dry_run)
        chosen = self._chosen(target, owner)
        if chosen is None:
            assert isinstance(target, str), "a selector may choose nothing, but it is not unknown"
            if not if_unknown_hold:
                raise RunNotFound(target)
            return StopResult(waits_until=None if dry_run else self._wait_for_run(target, owner, intent))
        found = [(kept, rules.answer_of(kept.record, intent)) for kept in chosen]
        until: float | None = None
        if not dry_run:
            at = rules.asked(asked_at, self.now())
            for kept in chosen:
                for node in kept.subtree():
                    self._stop(node, intent, at)
            if not chosen and if_unknown_hold is not False and isinstance(target, Selector):
                until = self._wait_for_key(target, owner, intent, if_unknown_hold=if_unknown_hold)
            answers = [(kept.record.id, answer) for kept, answer in found]
            if idempotency_key is not None:
                self._answered[owner, idempotency_key] = (self.now(), answers, placed, until)
            result: dict[str, object] = {"runs": dict(answers), "hold": placed and placed.id}
            if isinstance(target, str):
                result["owner"] = chosen[0].record.owner
            self._note("stop", intent, target, result)
        return self._result(found, placed, until)

    def _chosen(self, target: str | Selector, owner: str | None) -> list[StoredRun] | None:
        if isinstance(target, Selector):
            found = {
                run_id: kept
                for run_id, kept in self._live.items()
                if target.matches(
                    owner=kept.record.owner, labels=kept.record.labels, name=kept.record.name, key=kept.record.key
                )
                and owner in {None, kept.record.owner}
            }
            return [kept for kept in found.values() if found.keys().isdisjoint(kept.above())]
        kept = self._runs.get(target)
        return None if kept is None or owner not in {None, kept.record.owner} else [kept]

    def _answer_again(
        self,
        target: str | Selector,
        answers: Sequence[tuple[str, Answer]],
        placed: Hold | None,
        until: float | None,
    ) -> StopResult:
        found = [(self._runs[run_id], answer) for run_id, answer in answers if run_id in self._runs]
        if isinstance(target, str) and not found:
            raise RunNotFound(target)  # it was purged
        return self._result(found, placed, until)

    @staticmethod
    def _result(
        found: Sequence[tuple[StoredRun, Answer]], placed: Hold | None, until: float | None = None
    ) -> StopResult:
        return StopResult(
            answers=tuple(StopAnswer(record=kept.current(), answer=answer) for kept, answer in found),
            hold=placed,
            waits_until=until,
        )

    def _stop(self, kept: StoredRun, intent: StopIntent, at: float) -> None:
        record = kept.record
        stop = rules.raised(record.stop, intent)
        if record.over or stop is record.stop:
            return
        requested = at if record.stop_requested_at is None else record.stop_requested_at
        kept.record = changed(record, stop=stop, stop_requested_at=requested)
        if not rules.is_answered(kept.record):
            self._unacknowledged[record.id] = kept
        if record.status is not Status.PENDING:
            self._add(kept, [replace(rules.status_of_stop(Status.STOPPING, stop), at=at)])
        self._touched.add(record.id)
        self._woken.add(record.worker)

    @_atomic
    def acknowledge(self, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> None:
        """Record that a gate is closed."""
        kept = self._fenced(run_id, epoch)
        kept.record = changed(kept.record, receipt=rules.timed(receipt, kept.record.stop_requested_at))
        self._touched.add(run_id)
        for node in kept.subtree():
            if node is kept or rules.is_closed_with(node.record, kept.record):
                known = node.record.acknowledged
                node.record = changed(node.record, acknowledged=mode if known is None else max(known, mode))
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
        kept = self._kept(run_id)
        rules.check_end(outcome, events)
        if kept.record.over or kept.record.epoch != epoch:
            kept.record = rules.late(kept.record, outcome, self.now())
            self._add(kept, [rules.late_event(outcome)])
        else:
            self._add(kept, events)
            self._end(kept, rules.over(kept.record, outcome, receipt, self.now()))
        return kept.current()

    def _end(self, kept: StoredRun, record: RunRecord) -> None:
        assert record.outcome is not None, "how it ended"
        kept.record = record
        self._live.pop(record.id, None)
        self._unacknowledged.pop(record.id, None)
        self._add(kept, [rules.status_event(record.status, record), rules.done_event(record.outcome)])

    # Events

    @_atomic
    def append(self, run_id: str, epoch: int, events: Sequence[Draft]) -> int:
        """Append to a run's log."""
        rules.check_statuses(events)
        return self._add(self._fenced(run_id, epoch), events)

    def _add(self, kept: StoredRun, drafts: Sequence[Draft]) -> int:
        log, now = kept.events, self.now()
        for draft in drafts:
            if draft.type in rules.MOVES and not kept.record.over:
                kept.record = rules.moved(kept.record, draft, now)
            if len(log) >= self._events_kept and draft.type not in rules.ALWAYS_KEPT:
                if any(event.type is EventType.TRUNCATED for event in log[self._events_kept :]):
                    continue
                draft = Draft(type=EventType.TRUNCATED)  # noqa: PLW2901 - in its place
            at = now if draft.at is None else draft.at
            log.append(Event(run_id=kept.record.id, seq=len(log) + 1, at=at, type=draft.type, data=dict(draft.data)))
            self._all_events.add(log[-1])
        self._touched.add(kept.record.id)
        return len(log)

    @_atomic
    def read(self, run_id: str, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        """Return a part of a run's log."""
        return self._kept(run_id).events[max(after, 0) : max(after, 0) + limit]

    @_atomic
    def tail(
        self, after: int = 0, limit: int = 1000, *, types: Collection[EventType] = (), below: str | None = None
    ) -> Tail:
        """Return events of many runs in order."""
        if below is None:
            return self._all_events.tail(after, limit, types, lambda _: True)
        meant = {node.record.id for node in self._kept(below).subtree()}
        return self._all_events.tail(after, limit, types, meant.__contains__)

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
        return self._kept(run_id).current()

    @_atomic
    def query(self, wanted: Filter, cursor: str | None = None, limit: int = 100) -> Summaries:
        """Return the runs that match, newest first."""
        below, limit = rules.cursor_number(cursor), rules.page_size(limit)
        newest = (kept for kept in reversed(self._runs.values()) if kept.number < below and wanted.matches(kept.record))
        found = list(itertools.islice(newest, limit + 1))
        more = str(found[limit - 1].number) if len(found) > limit else None
        return Summaries(runs=tuple(RunSummary.of(kept.record) for kept in found[:limit]), cursor=more)

    @_atomic
    def tree(self, run_id: str) -> Sequence[RunSummary]:
        """Return a run and all its descendants."""
        return [RunSummary.of(kept.record) for kept in self._kept(run_id).subtree()]

    @_atomic
    def counts(self) -> Mapping[str, int]:
        """Return how many runs have each status."""
        return Counter(kept.record.status.value for kept in self._runs.values())

    def _kept(self, run_id: str) -> StoredRun:
        try:
            return self._runs[run_id]
        except KeyError:
            raise RunNotFound(run_id) from None

    def _fenced(self, run_id: str, epoch: int) -> StoredRun:
        kept = self._kept(run_id)
        if kept.record.epoch != epoch or kept.record.over:
            raise Fenced(run_id)
        return kept

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
        self._answered = {key: kept for key, kept in self._answered.items() if kept[0] >= before - KEYS_KEPT}
        forgotten = old_trees(self._runs, before, limit)
        for run_id in forgotten:
            del self._runs[run_id]
        self._all_events.forget(forgotten)
        return len(forgotten)

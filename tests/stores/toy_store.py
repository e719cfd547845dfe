"""A store in one pickled file, as docs/how-to/write-a-store.md says to write one.

It is slow and small: each call locks the file, reads all of it, and writes it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from stoppable import Fenced, HoldNotFound, Mode, Receipt, RunConflict, RunHeld, RunNotFound, Status
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
from stoppable.stores.rules import open_boundaries

from .toy_state import News, State, answered_again, chosen_runs, is_matched, result_of

T = TypeVar("T")
LOOK_SECONDS = 0.02


class ToyStore:
    """The Store protocol over one file."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = wall_clock, events_kept: int = EVENTS_KEPT, *, locks: bool = True
    ) -> None:
        self._path, self._clock, self._kept, self._locks = path, clock, events_kept, locks
        self._watchers, self._hints = Listeners(), Listeners()
        self._closing = threading.Event()

    # Its life

    def open(self) -> None:
        threading.Thread(target=self._look, args=(self._closing, self._stamp()), daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._closing = threading.Event()

    def now(self) -> float:
        return self._clock()

    @property
    def inherited(self) -> tuple[int, ...]:
        return ()

    def _look(self, closing: threading.Event, seen: object) -> None:
        """Tell listeners of what other processes write."""
        while not closing.wait(LOOK_SECONDS):
            if seen != (seen := self._stamp()):
                self._watchers.tell(self._watchers.names())
                self._hints.tell(self._hints.names(), None)

    def _stamp(self) -> object:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(f"{self._path}.lock", "wb") as file:  # noqa: PTH123 - a name beside the file
            if self._locks:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _call(self, work: Callable[[State], T]) -> StoreFuture[T]:
        """Make a call as a whole or not at all, then tell whoever listens."""
        news = News()

        def made() -> T:
            with self._locked():
                before = self._path.read_bytes() if self._path.exists() else b""
                state: State = pickle.loads(before) if before else State()
                state.news = news
                answer = work(state)
                if not self._locks:
                    threading.Event().wait(0.002)  # the moment between two statements of a database
                state.news = News()
                after = pickle.dumps(state)
                if after != before:  # looking changes nothing
                    new = self._path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
                    new.write_bytes(after)
                    new.replace(self._path)
                return answer

        reply = StoreFuture.of(made)
        self._watchers.tell(news.runs)
        self._hints.tell(news.workers, None)
        return reply

    # Workers

    def open_worker(self, info: WorkerInfo, ttl: float) -> StoreFuture[None]:
        def work(state: State) -> None:
            if info.id in state.closed | state.silent:
                raise Fenced(info.id)
            state.leases[info.id] = self.now() + ttl

        return self._call(work)

    def heartbeat(self, worker: str, ttl: float) -> StoreFuture[Sequence[Intent]]:
        def work(state: State) -> list[Intent]:
            if worker not in state.leases:
                raise Fenced(worker)
            state.leases[worker] = self.now() + ttl
            return self._to_stop(state, worker)

        return self._call(work)

    def intents(self, worker: str) -> StoreFuture[Sequence[Intent]]:
        return self._call(lambda state: self._to_stop(state, worker))

    @staticmethod
    def _to_stop(state: State, worker: str) -> list[Intent]:
        return [
            Intent(run_id=record.id, stop=record.stop)
            for record in state.runs.values()
            if record.worker == worker and not record.over and record.stop and not rules.is_answered(record)
        ]

    def close_worker(self, worker: str) -> StoreFuture[None]:
        def work(state: State) -> None:
            if state.leases.pop(worker, None) is not None:
                state.closed.add(worker)

        return self._call(work)

    def hints(self, worker: str, wake: Wake) -> Subscription:
        return self._hints.add(worker, wake)

    def reap(self, limit: int = 100, *, expired: bool = True) -> StoreFuture[Sequence[RunRecord]]:
        def work(state: State) -> list[RunRecord]:
            if expired:
                silent = {worker for worker, until in state.leases.items() if until < self.now()}
                state.silent |= silent
                for worker in silent:
                    del state.leases[worker]
            gone = state.closed | state.silent if expired else state.closed
            found = [record for record in state.runs.values() if not record.over and record.worker in gone][:limit]
            for record in found:
                proven = record.worker in state.closed
                partials = [event.data for event in state.log(record.id) if event.type is EventType.PARTIAL]
                self._end(state, rules.reap_record(record, self.now(), proven_dead=proven, partials=partials))
            return [state.runs[record.id] for record in found]

        return self._call(work)

    # Runs

    def register(self, record: RunRecord, request: str) -> StoreFuture[Registration]:
        def work(state: State) -> Registration:
            known = state.runs.get(record.id)
            if known is not None:
                if state.requests[record.id] != request or known.owner != record.owner:
                    raise RunConflict(record.id)
                return Registration(record=known, created=False)
            if record.worker not in state.leases:
                raise Fenced(record.worker)
            parent = state.runs.get(record.parent_id or "")
            if parent is None:
                for hold in state.holds.values():
                    if is_matched(hold.selector, record):
                        raise RunHeld(hold.id, hold.reason.message)
            now = self.now()
            made = replace_fields(record, created_at=now, root_id=parent.root_id if parent else record.root_id)
            if record.status is Status.RUNNING:
                made = rules.start_child_record(made, parent, now)
            state.numbers[record.id], state.requests[record.id] = state.number(), request
            state.runs[record.id] = made
            state.news.runs.add(record.id)
            if record.status is Status.RUNNING:
                self._add(state, record.id, [rules.status_event(made.status, made)])
                state.news.workers.add(record.worker)
            elif (stop := self._first_stop(state, made, parent)) is not None:
                self._end(state, rules.never_started_record(made, stop, now))
            return Registration(record=state.runs[record.id], created=True)

        return self._call(work)

    def _first_stop(self, state: State, record: RunRecord, parent: RunRecord | None) -> StopIntent | None:
        first = rules.stop_of_parent(parent, self.now())
        if first is not None:
            return first
        addresses = [("run", record.id)] + ([] if record.key is None else [("key", record.key)])
        for kind, address in addresses:
            for owner in dict.fromkeys((None, record.owner)):
                until, stop = state.tombstones.pop((kind, address, owner), (0.0, None))
                if stop is not None and until > self.now():
                    first = rules.escalate(first, stop)
        return first

    def request_stop(self, request: StopRequest) -> StoreFuture[StopResult]:
        target, intent, owner = request.target, request.intent, request.owner

        def work(state: State) -> StopResult:
            if request.idempotency_key is not None and (owner, request.idempotency_key) in state.answered:
                return answered_again(state, target, state.answered[owner, request.idempotency_key][1])
            rules.check_waiting(request)
            held = rules.hold_selector(target, owner) if request.hold else None
            chosen = chosen_runs(state, target, owner)
            if not chosen and isinstance(target, str):
                if request.if_unknown != "wait":
                    raise RunNotFound(target)
                if request.dry_run:
                    return StopResult()
                self._note(state, "stop", intent, target, {"runs": {}, "hold": None, "owner": owner})
                return StopResult(waits_until=self._wait(state, "run", target, owner, intent, TOMBSTONE_SECONDS))
            answers = {record.id: rules.answer_of(record, intent) for record in chosen}
            placed = None if held is None else self._make_hold(state, held, intent)
            if request.dry_run:
                return result_of(state, answers, placed)
            until = None
            if not chosen and request.if_unknown != "ignore" and isinstance(target, Selector):
                until = self._wait_for_key(state, target, request)
            if placed is not None:
                state.holds[placed.id] = placed
            for record in chosen:
                for node in state.tree(record.id):
                    self._stop(state, node, intent, rules.request_time(request.asked_at, self.now()))
            result = result_of(state, answers, placed, until)
            if request.idempotency_key is not None:
                state.answered[owner, request.idempotency_key] = (self.now(), result)
            told: dict[str, Any] = {"runs": answers, "hold": placed and placed.id}
            if isinstance(target, str):
                told["owner"] = chosen[0].owner
            self._note(state, "stop", intent, target, told)
            return result

        return self._call(work)

    def _wait_for_key(self, state: State, target: Selector, request: StopRequest) -> float | None:
        if not rules.waits_for_key(target, request.owner):
            return None
        meant = target.owner if request.owner is None else request.owner
        has_run = any(Filter(key=target.key, owner=meant).matches(record) for record in state.runs.values())
        seconds = rules.waiting_seconds(has_run=has_run, if_unknown=request.if_unknown)
        return None if seconds is None else self._wait(state, "key", target.key or "", meant, request.intent, seconds)

    def _wait(
        self, state: State, kind: str, address: str, owner: str | None, intent: StopIntent, seconds: float
    ) -> float:
        known, earlier = state.tombstones.get((kind, address, owner), (0.0, None))
        if known <= self.now():
            earlier = None
        until = max(known, self.now() + seconds)
        state.tombstones[kind, address, owner] = (until, rules.escalate(earlier, intent))
        return until

    def _stop(self, state: State, record: RunRecord, intent: StopIntent, at: float) -> None:
        stop = rules.escalate(record.stop, intent)
        if record.over or stop is record.stop:
            return
        requested = at if record.stop_requested_at is None else record.stop_requested_at
        state.runs[record.id] = replace_fields(record, stop=stop, stop_requested_at=requested)
        if record.status is not Status.PENDING:
            told = rules.status_of_stop(Status.STOPPING, stop)
            self._add(state, record.id, [Draft(type=told.type, data=told.data, at=at)])
        state.news.runs.add(record.id)
        state.news.workers.add(record.worker)

    def acknowledge(self, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> StoreFuture[None]:
        def work(state: State) -> None:
            record = state.live(run_id, epoch)
            top = state.runs[run_id] = replace_fields(
                record, receipt=rules.with_request_time(receipt, record.stop_requested_at)
            )
            state.news.runs.add(run_id)
            for node in state.tree(run_id):
                if node.id == run_id or rules.is_closed_with(node, top):
                    known = node.acknowledged
                    state.runs[node.id] = replace_fields(node, acknowledged=mode if known is None else max(known, mode))

        return self._call(work)

    def finish(
        self,
        run_id: str,
        epoch: int,
        outcome: OutcomeRecord,
        receipt: Receipt | None,
        events: Sequence[Draft] = (),
    ) -> StoreFuture[RunRecord]:
        def work(state: State) -> RunRecord:
            record = state.run(run_id)
            rules.check_end(outcome, events)
            if record.over or record.epoch != epoch:
                state.runs[run_id] = rules.note_late_end(record, outcome, self.now())
                self._add(state, run_id, [rules.late_event(outcome)])
            else:
                self._add(state, run_id, events)
                self._end(state, rules.finish_record(state.runs[run_id], outcome, receipt, self.now()))
            return state.runs[run_id]

        return self._call(work)

    def _end(self, state: State, record: RunRecord) -> None:
        assert record.outcome is not None
        state.runs[record.id] = record
        self._add(state, record.id, [rules.status_event(record.status, record), rules.done_event(record.outcome)])

    # Events

    def append(self, run_id: str, epoch: int, events: Sequence[Draft]) -> StoreFuture[int]:
        def work(state: State) -> int:
            state.live(run_id, epoch)
            rules.check_statuses(events)
            to_json([draft.data for draft in events])
            return self._add(state, run_id, events)

        return self._call(work)

    def _add(self, state: State, run_id: str, drafts: Sequence[Draft]) -> int:
        seq = state.runs[run_id].last_event
        for draft in drafts:
            record = state.runs[run_id]
            if draft.type in rules.MOVES and not record.over:
                record = rules.apply_event(record, draft, self.now())
            if seq >= self._kept and draft.type not in rules.ALWAYS_KEPT:
                state.runs[run_id] = record
                if any(event.type is EventType.TRUNCATED for event in state.log(run_id)):
                    continue
                draft = Draft(type=EventType.TRUNCATED)  # noqa: PLW2901 - in its place
            seq, state.place = seq + 1, state.place + 1
            at = self.now() if draft.at is None else draft.at
            event = Event(run_id=run_id, seq=seq, at=at, type=draft.type, data=dict(draft.data))
            state.events.append((state.place, event))
            state.runs[run_id] = replace_fields(record, last_event=seq)
        state.news.runs.add(run_id)
        return seq

    def read(self, run_id: str, after: int = 0, limit: int = 1000) -> StoreFuture[Sequence[Event]]:
        def work(state: State) -> list[Event]:
            state.run(run_id)
            return state.log(run_id)[max(after, 0) : max(after, 0) + limit]

        return self._call(work)

    def tail(
        self, after: int = 0, limit: int = 1000, *, types: Collection[EventType] = (), below: str | None = None
    ) -> StoreFuture[Tail]:
        def work(state: State) -> Tail:
            meant = None if below is None else {record.id for record in state.tree(below)}
            found = [
                (place, event)
                for place, event in state.events
                if place > after and (not types or event.type in types) and (meant is None or event.run_id in meant)
            ]
            if len(found) <= limit:
                return Tail(place=state.place, events=tuple(found))
            return Tail(place=found[limit - 1][0] if limit else after, events=tuple(found[:limit]), has_more=True)

        return self._call(work)

    def in_flight(self, run_ids: Sequence[str]) -> StoreFuture[Mapping[str, tuple[str, ...] | None]]:
        def work(state: State) -> dict[str, tuple[str, ...] | None]:
            live = [run_id for run_id in run_ids if run_id in state.runs and not state.runs[run_id].over]
            return {run_id: open_boundaries(state.log(run_id)) for run_id in live}

        return self._call(work)

    def watch(self, run_id: str, wake: Callable[[], object]) -> Subscription:
        return self._watchers.add(run_id, wake)

    # Looking

    def get(self, run_id: str) -> StoreFuture[RunRecord]:
        return self._call(lambda state: state.run(run_id))

    def query(self, wanted: Filter, cursor: str | None = None, limit: int = 100) -> StoreFuture[Summaries]:
        def work(state: State) -> Summaries:
            below, most = rules.cursor_number(cursor), rules.page_size(limit)
            newest = [record for record in reversed(state.runs.values()) if wanted.matches(record)]
            found = [record for record in newest if state.numbers[record.id] < below]
            more = str(state.numbers[found[most - 1].id]) if len(found) > most else None
            return Summaries(runs=tuple(map(RunSummary.of, found[:most])), cursor=more)

        return self._call(work)

    def tree(self, run_id: str) -> StoreFuture[Sequence[RunSummary]]:
        return self._call(lambda state: [RunSummary.of(record) for record in state.tree(run_id)])

    def counts(self) -> StoreFuture[Mapping[str, int]]:
        return self._call(lambda state: Counter(record.status.value for record in state.runs.values()))

    # Holds, audit, retention

    def place_hold(self, selector: Selector, intent: StopIntent) -> StoreFuture[Hold]:
        def work(state: State) -> Hold:
            hold = self._make_hold(state, selector, intent)
            state.holds[hold.id] = hold
            self._note(state, "hold", intent, selector, {"hold": hold.id})
            return hold

        return self._call(work)

    def _make_hold(self, state: State, selector: Selector, intent: StopIntent) -> Hold:
        return Hold(id=f"hold-{state.number()}", selector=selector, reason=intent.reason, created_at=self.now())

    def release(self, hold_id: str, actor: str | None = None) -> StoreFuture[Hold]:
        def work(state: State) -> Hold:
            if hold_id not in state.holds:
                raise HoldNotFound(hold_id)
            hold = state.holds.pop(hold_id)
            self._note(
                state, "release", StopIntent(reason=replace(hold.reason, actor=actor)), hold.selector, {"hold": hold.id}
            )
            return hold

        return self._call(work)

    def holds(self) -> StoreFuture[Sequence[Hold]]:
        return self._call(lambda state: list(state.holds.values()))

    def audit(self, after: int = 0, limit: int = 100) -> StoreFuture[Sequence[AuditEntry]]:
        return self._call(lambda state: state.audit[max(after, 0) : max(after, 0) + limit])

    def _note(self, state: State, action: str, intent: StopIntent, target: str | Selector, result: Any) -> None:
        number = len(state.audit) + 1
        state.audit.append(rules.audit_entry(number, self.now(), action, intent, target, to_json(result)))

    def purge(self, before: float, limit: int = 1000) -> StoreFuture[int]:
        def work(state: State) -> int:
            state.answered = {key: kept for key, kept in state.answered.items() if kept[0] >= before - KEYS_KEPT}
            forgotten = 0
            for root in [record for record in state.runs.values() if record.parent_id not in state.runs]:
                tree = state.tree(root.id)
                if forgotten < limit and all(node.over and (node.ended_at or 0) < before for node in tree):
                    gone = {node.id for node in tree}
                    state.runs = {run_id: record for run_id, record in state.runs.items() if run_id not in gone}
                    state.events = [placed for placed in state.events if placed[1].run_id not in gone]
                    forgotten += len(tree)
            return forgotten

        return self._call(work)

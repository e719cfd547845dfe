"""Counts for metrics: what is done in the store of a supervisor, and how long that takes.

Nothing is counted until somebody asks for it (``SupervisorCore.measure``). From then on the calls of the store pass
through ``MeasuredStore``, and almost everything is read from their answers: they say once, and for good, which runs
began and how they ended, whichever process executed them. The code of runs never waits for a count.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from stoppable._core import clock
from stoppable._core.stop import CHANGES, Receipt
from stoppable._core.values import Mode, Rung, Status
from stoppable.errors import StoreError
from stoppable.records import Draft, OutcomeRecord, RunRecord, StopRequest, StopResult
from stoppable.stores.base import Registration, Store, StoreFuture

T = TypeVar("T")

OTHER = "other"
"""Stands for every agent that is not among those whose names were given."""

_LABEL = 200  # characters of a name

_STORE_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STOP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

_READS = ("intents", "read", "tail", "in_flight", "get", "query", "tree", "counts", "holds", "audit")
_WRITES = ("heartbeat", "acknowledge", "purge")
KINDS = (*_WRITES, "append", "finish", "read", "reap", "register", "stop")
"""The kinds of calls of a store; all that read are one."""

Labels: TypeAlias = tuple[str, ...]


_FINAL = tuple(status.value for status in Status if status.terminal)
_ANSWERS = ("accepted", "unchanged", "waiting")


class Histogram:
    """How many values there were up to each bound, and their sum; the meter has its lock."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Sequence[float] = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.sum: float = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Yield each bound with the number of values up to it."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield bound, total


class Meter:
    """The counts of one supervisor, since they were first asked for.

    Counts that an alert asks for begin with 0: Prometheus does not see the first increase of what was not there.
    """

    def __init__(self) -> None:
        # Reentrant: a count may be interrupted, on its own thread, by a signal handler or a finalizer that counts too.
        self.lock: threading.RLock = threading.RLock()
        self._agents: dict[str, str] = {}
        self.started: Counter[Labels] = Counter()
        """Runs that were registered, by agent."""
        self.ended: Counter[Labels] = Counter()
        """Runs by agent and final status."""
        self.reaped: Counter[Labels] = Counter({(status,): 0 for status in _FINAL if status != Status.COMPLETED})
        """Runs whose worker was gone, by the status that they got."""
        self.requested: Counter[Labels] = Counter({(mode.value, answer): 0 for mode in Mode for answer in _ANSWERS})
        """Stop requests by mode and answer."""
        self.stopped: Counter[Labels] = Counter(
            {(mode.value, Rung.KILL.value, status): 0 for mode in Mode for status in _FINAL}
        )
        """Stopped runs by mode, rung and final status."""
        self.phases: dict[str, Histogram] = {
            phase: Histogram(_STOP_BOUNDS) for phase in ("acknowledged", "delivered", "ended")
        }
        """The seconds from the request of a stop to each of its phases."""
        self.entered_after: int = 0
        self.late: int = 0
        self.events: int = 0
        self.fenced_runs: int = 0
        self.calls: dict[str, Histogram] = {kind: Histogram(_STORE_BOUNDS) for kind in KINDS}
        self._appends: Histogram = self.calls["append"]
        self.failures: Counter[Labels] = Counter(dict.fromkeys(((kind,) for kind in KINDS), 0))

    def name_agents(self, names: Collection[str]) -> None:
        """Count the runs of these agents under their names from now on, beside those that are named already."""
        with self.lock:
            self._agents |= {name: name.encode(errors="replace").decode()[:_LABEL] for name in names}
            for label in {OTHER, *self._agents.values()}:
                self.started[label,] += 0
                for status in _FINAL:
                    self.ended[label, status] += 0

    def label(self, agent: str) -> str:
        """Return the name under which the runs of an agent are counted."""
        return self._agents.get(agent, OTHER)

    # What the store has answered

    def appended(self, seconds: float, count: int) -> None:
        """Count a call that appended events, with one turn of the lock: there may be one for each boundary."""
        appends = self._appends
        place = bisect_left(_STORE_BOUNDS, seconds)
        with self.lock:
            appends.counts[place] += 1
            appends.sum += seconds
            self.events += count

    def called(self, kind: str, seconds: float) -> None:
        """Count a call of the store."""
        with self.lock:
            self.calls[kind].add(seconds)

    def failed(self, kind: str) -> None:
        """Count a call that the store could not answer."""
        with self.lock:
            self.failures[kind,] += 1

    def registered(self, registration: Registration) -> None:
        """Count a run that was new; a stop that came before it has ended it already."""
        if registration.created:
            with self.lock:
                self.started[self.label(registration.record.name),] += 1
            if registration.record.over:
                self.run_ended(registration.record)

    def finished(self, outcome: OutcomeRecord, events: int, record: RunRecord) -> None:
        """Count the end of a run, or one that came after the run was given up."""
        if record.status is Status.LOST and outcome.status is not Status.LOST:
            with self.lock:
                self.late += 1
            return
        with self.lock:
            self.events += events
        self.run_ended(record)

    def reaped_runs(self, records: Sequence[RunRecord]) -> None:
        """Count the runs of other workers that were gone."""
        for record in records:
            with self.lock:
                self.reaped[record.status.value,] += 1
            self.run_ended(record)

    def run_ended(self, record: RunRecord) -> None:
        """Count a run that has ended, and how it was stopped."""
        status = record.status.value
        with self.lock:
            self.ended[self.label(record.name), status] += 1
            if record.stop is None:
                return
            rung = None if record.outcome is None else record.outcome.rung
            self.stopped[record.stop.mode.value, "none" if rung is None else rung.value, status] += 1
            receipt, requested_at = record.receipt, record.stop_requested_at
            if receipt is None or requested_at is None:
                return
            times = (receipt.acknowledged_at, receipt.delivered_at, record.ended_at)
            for phase, at in zip(self.phases.values(), times, strict=True):
                if at is not None:
                    phase.add(max(0.0, at - requested_at))  # two machines may differ by a little

    def stop_requested(self, request: StopRequest, result: StopResult) -> None:
        """Count a stop request, as the audit does: not a preview, and not one of a run that there is not."""
        if request.dry_run:
            return
        if any(one.answer in CHANGES for one in result.answers):
            answer = "accepted"
        else:
            answer = "waiting" if result.waits_until is not None else "unchanged"
        with self.lock:
            self.requested[request.intent.mode.value, answer] += 1

    # What the supervisor says

    def entered_late(self, count: int) -> None:
        """Count boundaries that were entered in a shield after a stop."""
        with self.lock:
            self.entered_after += count

    def fenced(self, count: int) -> None:
        """Count the runs that were killed because the lease of their worker was lost."""
        with self.lock:
            self.fenced_runs += count


class MeasuredStore:
    """A store whose calls are measured; everything else is that of the store behind it."""

    def __init__(self, store: Store, meter: Meter) -> None:
        self._store = store
        self._meter = meter
        for name in _READS:
            setattr(self, name, self._plain("read", getattr(store, name)))
        for name in _WRITES:
            setattr(self, name, self._plain(name, getattr(store, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, run_id: str, epoch: int, events: Sequence[Draft]) -> StoreFuture[int]:
        """Append events, and count them."""
        began = clock.now()
        reply = self._store.append(run_id, epoch, events)
        if reply._is_settled and reply._error is None:  # a store in memory: each boundary may make such a call
            self._meter.appended(clock.now() - began, len(events))
        else:
            reply.then(partial(self._on_appended, began, len(events)))
        return reply

    def _on_appended(self, began: float, count: int, reply: StoreFuture[int]) -> None:
        seconds = clock.now() - began
        try:
            reply.result()
        except Exception as error:
            self._meter.called("append", seconds)
            if isinstance(error, StoreError):
                self._meter.failed("append")
        else:
            self._meter.appended(seconds, count)

    def finish(
        self, run_id: str, epoch: int, outcome: OutcomeRecord, receipt: Receipt | None, events: Sequence[Draft] = ()
    ) -> StoreFuture[RunRecord]:
        """End a run, and count it by what the store made of that."""
        began, count = clock.now(), len(events)
        reply = self._store.finish(run_id, epoch, outcome, receipt, events)
        return self._measured("finish", began, reply, partial(self._meter.finished, outcome, count))

    def reap(self, limit: int = 100, *, expired: bool = True) -> StoreFuture[Sequence[RunRecord]]:
        """End the runs of workers that are gone, and count them."""
        began = clock.now()
        return self._measured("reap", began, self._store.reap(limit, expired=expired), self._meter.reaped_runs)

    def register(self, record: RunRecord, request: str) -> StoreFuture[Registration]:
        """Store a run, and count it if it is new."""
        began = clock.now()
        return self._measured("register", began, self._store.register(record, request), self._meter.registered)

    def request_stop(self, request: StopRequest) -> StoreFuture[StopResult]:
        """Store a stop, and count its answer."""
        began = clock.now()
        reply = self._store.request_stop(request)
        return self._measured("stop", began, reply, partial(self._meter.stop_requested, request))

    def _plain(self, kind: str, call: Callable[..., StoreFuture[Any]]) -> Callable[..., StoreFuture[Any]]:
        def measured(*args: Any, **options: Any) -> StoreFuture[Any]:
            began = clock.now()
            return self._measured(kind, began, call(*args, **options))

        return measured

    def _measured(
        self, kind: str, began: float, reply: StoreFuture[T], count: Callable[[T], object] | None = None
    ) -> StoreFuture[T]:
        reply.then(partial(self._on_reply, kind, began, count))
        return reply

    def _on_reply(self, kind: str, began: float, count: Callable[[T], object] | None, reply: StoreFuture[T]) -> None:
        self._meter.called(kind, clock.now() - began)
        try:
            answer = reply.result()
        except StoreError:
            self._meter.failed(kind)
        except Exception:  # an answer too, for whoever has asked
            return
        else:
            if count is not None:
                count(answer)

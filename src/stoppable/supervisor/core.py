"""The logic of a supervisor, without waiting; the async and the blocking supervisor add the waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Self, cast

from stoppable._core import clock
from stoppable._core.node import RunNode
from stoppable._core.participants import Role
from stoppable._core.run import Run
from stoppable._core.stop import Answer, Receipt, Stop, write_receipt
from stoppable._core.values import Mode, Outcome, Reason, ReasonKind, Status, seconds
from stoppable._engine import control
from stoppable._engine.isolation.messages import Values
from stoppable._engine.processes.command import add_inherited_fds, remove_inherited_fds
from stoppable._engine.processes.table import end_orphans
from stoppable.errors import InvalidArgument, RunFailed, RunLost, RunNotFound, RunStopped, StoppableError, StoreError
from stoppable.records import (
    BulkStop,
    Event,
    EventType,
    Filter,
    IfUnknown,
    RunRecord,
    Selector,
    StopAnswer,
    StopIntent,
    StopRequest,
    StopResult,
    TreeEvent,
    check_key,
)
from stoppable.stores.base import ANY, Intent, Registration, Store, StoreFuture, Tail, settle
from stoppable.stores.rules import receipt_of
from stoppable.stores.urls import store_of
from stoppable.supervisor.jobs import Job, OnDisconnect, Options
from stoppable.supervisor.lease import Lease
from stoppable.supervisor.log_writer import LogWriter, RunLog, as_of_stop, on_store_clock, reason_on_store_clock
from stoppable.supervisor.meter import MeasuredStore, Meter

_logger = logging.getLogger("stoppable")

SHUTDOWN_MARGIN = 5.0
"""How long a shutdown waits, after the runs have ended, until their ends are stored."""

_ACKNOWLEDGE_SECONDS = 1.0
_PURGE_SECONDS = 3600.0
_PURGED_AT_ONCE = 1000
_DAY = 86_400.0
_UNCONFIRMED_SECONDS = 60.0  # longer than a database goes on with a transaction whose client is gone


class SubmittedStop(NamedTuple):
    """A stop that is being stored, and the runs of this process that it has already stopped."""

    intent: StopIntent
    reply: StoreFuture[StopResult]
    stopped: Mapping[str, RunLog]


class SupervisorCore:
    """The store, the lease of this process, and the runs that it executes."""

    def __init__(
        self,
        store: str | Store | None,
        *,
        ttl: float,
        keep_days: float | None,
        keep_input: bool = True,
        unpickle: bool = True,
    ) -> None:
        if not seconds(ttl, "ttl"):
            raise InvalidArgument("ttl is 0: use a positive number of seconds, such as 30")
        self.store: Store = store_of(store)
        self.lease: Lease = Lease(
            self.store, ttl, deliver=self._receive, on_fenced=self._kill_all, on_heartbeat=self._on_heartbeat
        )
        self.writer: LogWriter = LogWriter(self.store, lambda: self.lease.worker)
        self._keep_days = None if keep_days is None else seconds(keep_days, "keep_days", "days")
        self._keep_input = keep_input
        self._worker_values = Values.PICKLE if unpickle else Values.JSON
        self._purged_at = -math.inf
        self._listeners: list[Listener] = []
        self._starting: dict[RunLog, StoreFuture[Registration]] = {}
        self._unconfirmed: dict[str, float] = {}  # ids of runs that a failed store may have; until when to look
        self.is_closing: bool = False
        self.meter: Meter | None = None
        self._opening = threading.Lock()
        self._was_opened = False

    def open(self) -> None:
        """Connect and take a lease, once; blocks for a moment."""
        with self._opening:
            if self._was_opened:
                raise InvalidArgument("this supervisor was already used: make a new Supervisor for each block")
            self.store.open()
            add_inherited_fds(self._inherited)
            try:
                self.lease.open()
            except BaseException:
                remove_inherited_fds(self._inherited)
                self.store.close()
                raise
            self._was_opened = True
        self._end_orphans()

    def check_opened(self) -> None:
        """Raise an error if the supervisor was never opened."""
        if not self._was_opened:
            raise InvalidArgument("this supervisor is not open: use it in a with block")

    def close(self) -> None:
        """Release the lease and disconnect, once; blocks for a moment.

        While a run is alive whose end is not stored, the lease is not released but left to expire: releasing it would
        prove that run dead. If the supervisor is just being opened, it is closed after that; if it was not opened yet,
        it cannot be opened any more.
        """
        with self._opening:
            is_open, self._was_opened = self._was_opened, True
            alive = [log.run.id for log in list(self.writer.logs.values()) if log.run.is_alive()]
            if is_open and self.lease.close(give_back=not alive):
                if alive:
                    _logger.error("runs still alive, and lost once the lease has expired: %s", ", ".join(alive))
                remove_inherited_fds(self._inherited)
                for listener in self._listeners:
                    listener.close()
                self.store.close()
                self.writer.close()

    def end(self, seconds: float) -> None:
        """Wait until all runs of this process have ended, and close; blocks. The runs were stopped before."""
        self.wait_for_end(seconds)
        self.close()

    def _inherited(self) -> tuple[int, ...]:
        return self.store.inherited

    def measure(self) -> Meter:
        """Return the counts of this supervisor; nothing is counted before the first call."""
        with self._opening:
            if self.meter is None:
                self.meter = self.writer.meter = Meter()
                self.store = cast("Store", MeasuredStore(self.store, self.meter))
                self.writer._store = self.lease._store = self.store  # they were given it when they were made
        return self.meter

    def listen(self, call: Callable[[TreeEvent], object], run_id: str | None, types: Collection[EventType]) -> Listener:
        """Call a function with new events, until the listener or the supervisor is closed."""
        listener = Listener(self.store, call, run_id, types)
        self._listeners = [other for other in self._listeners if other.is_open] + [listener]
        return listener

    # Starting

    def job(self, agent: Callable[..., Any], args: tuple[Any, ...], options: Options, *, in_loop: bool) -> Job:
        """Return a job, or raise an error that says which argument is invalid."""
        return Job.of(
            agent, args, options, in_loop=in_loop, keep_input=self._keep_input, worker_values=self._worker_values
        )

    def register(self, job: Job) -> tuple[RunLog, StoreFuture[Registration]]:
        """Store a run that is about to start.

        It can be stopped from now on, even before it begins: the store gets the run before such a stop, and by the time
        it answers the stop, this process knows whether the run is its own. Until then the id may turn out to belong to
        a run of another process, and only that process can close its gate.
        """
        worker = self.lease.worker
        log = self.writer.log(job.run, worker, job.options.key)
        if self.is_closing:
            self.writer.drop(log)
            raise StoppableError("the supervisor is shutting down and takes no new runs")
        reply = self._starting[log] = self.store.register(job.to_record(worker), job.request)
        reply.then(partial(self._on_registered, log))
        return log, reply

    def _on_registered(self, log: RunLog, reply: StoreFuture[Registration]) -> None:
        try:
            self.accept_registration(log, reply.result())
        except Exception as error:  # the caller gets it
            self.writer.drop(log)
            if isinstance(error, StoreError):
                self._unconfirmed[log.run.id] = clock.now() + _UNCONFIRMED_SECONDS
        self._starting.pop(log, None)

    def accept_registration(self, log: RunLog, answer: Registration) -> bool:
        """Return whether this process has to start the run."""
        if not answer.created or answer.record.over:
            self.writer.drop(log)
            return False
        self._unconfirmed.pop(log.run.id, None)  # an earlier try had failed
        self.writer.adopt(log, answer.record.epoch)
        if self.is_closing:
            log.run.stop(reason=_shutdown())
        if log.worker != self.lease.worker:  # fenced meanwhile: the runs of the old lease were killed, but not this one
            log.run.stop("kill", _fenced())
        return True

    def abandon(self, log: RunLog, reply: StoreFuture[Registration]) -> None:
        """End a run whose start was cancelled while it was being registered; it never begins."""

        def on_answer(reply: StoreFuture[Registration]) -> None:
            try:
                is_ours = self.accept_registration(log, reply.result())
            except Exception:
                self.writer.drop(log)
                return
            if is_ours:
                log.run.stop(reason=Reason.of("its start was cancelled", kind=ReasonKind.EXTERNAL))
                log.run.skip()

        reply.then(on_answer)

    def _look_for_unconfirmed(self) -> None:
        for run_id in list(self._unconfirmed):
            self.store.get(run_id).then(partial(self._end_unconfirmed, run_id))

    def _end_unconfirmed(self, run_id: str, reply: StoreFuture[RunRecord]) -> None:
        """End a run that the store has although its registration failed: no worker executes it, so no stop ends it."""
        try:
            record = reply.result()
        except StoreError:
            return  # look again with the next heartbeat
        except RunNotFound:
            if clock.now() > self._unconfirmed.get(run_id, math.inf):
                self._unconfirmed.pop(run_id, None)
            return
        if any(log.run.id == run_id for log in list(self._starting)):
            return  # the caller tries again: look with the next heartbeat what came of that
        if self._unconfirmed.pop(run_id, None) is None or run_id in self.writer.logs:
            return  # that try has succeeded
        if record.over or record.worker != self.lease.worker:
            return  # of another worker: whoever gives that up ends its runs
        run = RunNode(record.name, run_id=record.id, owner=record.owner, labels=record.labels, policy=record.policy)
        stand_in = self.writer.log(run, record.worker, record.key)
        self.writer.adopt(stand_in, record.epoch)
        if record.stop is not None:
            self._deliver([(stand_in, record.stop)])
        else:
            run.stop(reason=Reason.of("its start failed", kind=ReasonKind.EXTERNAL))
        run.skip()

    # Stopping

    def intent(self, mode: str, reason: Reason | str | None, actor: str | None, grace: float | None) -> StopIntent:
        """Return a stop in the form that the store keeps, or raise an error that says which argument is invalid."""
        return StopIntent(
            mode=Mode.of(mode),
            reason=replace(Reason.of(reason, actor=actor), at=self.store.now()),
            grace=None if grace is None else seconds(grace, "grace"),
        )

    @staticmethod
    def checked_id(run_id: str | None, idempotency_key: str | None) -> str:
        """Return the run id of a stop without a key, or raise an error."""
        if run_id is None:
            raise InvalidArgument("nothing to stop: give the id of a run, or a key")
        if idempotency_key is not None:
            raise InvalidArgument("leave out idempotency_key: repeating the stop of one run is always safe")
        return run_id

    @staticmethod
    def conversation(
        run_id: str | None,
        key: str,
        intent: StopIntent,
        owner: str | None,
        *,
        if_unknown: IfUnknown,
        idempotency_key: str | None,
    ) -> StopRequest:
        """Return the store request of a stop with a key."""
        if run_id is not None:
            raise InvalidArgument("give the id of a run or a key, not both")
        return StopRequest(
            target=Selector(key=key, owner=owner),
            intent=intent,
            owner=owner,
            if_unknown=if_unknown,
            idempotency_key=idempotency_key,
        )

    def submit_stop(self, request: StopRequest) -> SubmittedStop:
        """Store a stop; the runs of this process are stopped at once, and only the answer waits for the store (G14).

        With an idempotency key the store comes first: if it has answered the key before, nothing is stopped.
        """
        intent = request.intent
        store_request = partial(self.store.request_stop, replace(request, asked_at=intent.reason.at))
        is_at_once = request.idempotency_key is None and not request.dry_run
        logs = self._local_targets(request.target, request.owner) if is_at_once else []
        if not logs:
            return SubmittedStop(intent, store_request(), {})
        submitted = SubmittedStop(intent, StoreFuture(), {log.run.id: log for log in logs})
        calls, put = self.writer.calls, partial(self._store_stop, submitted, store_request)
        is_news = not all(log.knows(intent.mode) for log in logs)
        if not is_news and calls.is_idle:
            put()
            return submitted
        calls.put_silently(put)  # before the runs are stopped, so that what they write comes after it
        self._stop_runs((log, intent) for log in logs)
        calls.request_flush(_loop_of(logs[0].run) or asyncio._get_running_loop())
        return submitted

    def _local_targets(self, target: str | Selector, owner: str | None) -> list[RunLog]:
        """Return the runs of this process that a stop selects.

        The store knows them all when it gets the stop, because children are registered through the same queue.
        """
        logs = self.writer.logs
        if isinstance(target, str):
            candidates = [logs[target]] if target in logs else []
        else:
            candidates = [
                log
                for log in list(logs.values())
                if target.matches(owner=log.run.owner, labels=log.run.labels, agent=log.run.name, key=log.key)
            ]
        targets = {log.run: log for log in candidates if owner is None or owner == log.run.owner}
        return [log for run, log in targets.items() if targets.keys().isdisjoint(_above(run))]

    def _store_stop(self, submitted: SubmittedStop, request: Callable[[], StoreFuture[StopResult]]) -> None:
        def on_answer(reply: StoreFuture[StopResult]) -> None:
            result: StopResult | None = None
            error: Exception | None = None
            try:
                result = reply.result()
            except StoreError as outage:
                for log in submitted.stopped.values():
                    log.known_mode = None  # the log writer stores it once the store answers
                error = StoreError(f"{outage}. The runs of this process were told to stop anyway")
            except Exception as refusal:
                error = refusal
            settle([(submitted.reply, result, error)])

        request().then(on_answer)

    def build_receipt(self, run_id: str, result: StopResult, submitted: SubmittedStop, wait: float | None) -> Receipt:
        """Stop the run, if the store selected it for this process, and return its receipt so far.

        With ``wait`` the caller reads the final receipt later, so this one is only what the store knows. The run may
        not exist yet: then it will be stopped before it begins.
        """
        if result.answers:
            return self._carry_out(result.answers, submitted, wait)[0]
        intent = submitted.intent
        return Receipt(
            run_id=run_id,
            answer=Answer.ACCEPTED,
            status=Status.PENDING,
            mode=intent.mode,
            reason=intent.reason,
            requested_at=intent.reason.at,
            acknowledged_at=intent.reason.at,  # there is no gate to close
        )

    def build_receipts(
        self, result: StopResult, submitted: SubmittedStop, wait: float | None, *, dry_run: bool
    ) -> BulkStop:
        """Do the same for a bulk stop; with ``dry_run``, return a preview of it."""
        if dry_run:
            receipts = [self.receipt(answer.record, answer.answer) for answer in result.answers]
        else:
            receipts = self._carry_out(result.answers, submitted, wait)
        return BulkStop(receipts, result.hold, result.waits_until)

    @staticmethod
    def runs_to_wait_for(bulk: BulkStop, wait: float | None) -> tuple[list[str], float]:
        """Return the runs to wait for, and for how many seconds (``wait_seconds``)."""
        is_settled = attrgetter("final") if wait else _is_closed
        return [receipt.run_id for receipt in bulk if not is_settled(receipt)], wait or _ACKNOWLEDGE_SECONDS

    def refresh(self, bulk: BulkStop, records: Mapping[str, RunRecord]) -> BulkStop:
        """Return the answer of a bulk stop after the wait, with the current records of its runs."""
        later = (
            self.receipt(records[receipt.run_id], receipt.answer) if receipt.run_id in records else receipt
            for receipt in bulk
        )
        return BulkStop(later, bulk.hold, bulk.waits_until)

    @staticmethod
    def receipt(record: RunRecord, answer: Answer) -> Receipt:
        """Return the stored receipt of a run, as the answer to a further stop."""
        return receipt_of(record, answer, record.status, record.ended_at)

    @staticmethod
    def wait_seconds(result: StopResult, receipt: Receipt, wait: float | None) -> float | None:
        """Return how many seconds to wait after a stop: for the end if ``wait`` is given, otherwise for closed gates.

        A run that does not exist yet has no gates: it will be stopped before it begins.
        """
        if not result.answers or receipt.final or (receipt.acknowledged_at is not None and not wait):
            return None
        return wait or _ACKNOWLEDGE_SECONDS

    def _carry_out(self, answers: Sequence[StopAnswer], submitted: SubmittedStop, wait: float | None) -> list[Receipt]:
        """Stop the selected runs that this process executes, all before any receipt is written, and answer for each."""
        logs = [self._log_of(answer.record, submitted.stopped) for answer in answers]
        live = [log for log, answer in zip(logs, answers, strict=True) if log is not None and not answer.record.over]
        self._deliver([(log, submitted.intent) for log in live])
        if wait:
            return [self.receipt(answer.record, answer.answer) for answer in answers]
        return [self._receipt_so_far(answer, log) for log, answer in zip(logs, answers, strict=True)]

    def _receipt_so_far(self, stop_answer: StopAnswer, log: RunLog | None) -> Receipt:
        record = stop_answer.record
        if log is None or record.over:
            return self.receipt(record, stop_answer.answer)  # its own worker answers for it
        if not log.run.token.stopped:  # it ended on its own first; its record, which is about to be stored, says so
            return self.receipt(record, stop_answer.answer)
        receipt = write_receipt(log.run, stop_answer.answer, with_entries=False)
        receipt = on_store_clock(receipt, log.offset)
        return as_of_stop(receipt) if receipt.final else receipt  # final once the end is stored

    def _log_of(self, record: RunRecord, stopped: Mapping[str, RunLog]) -> RunLog | None:
        """Return the log of a stored run if this worker executes it."""
        log = stopped.get(record.id) or self.writer.logs.get(record.id)
        return log if log is not None and log.worker == record.worker else None

    def _receive(self, intents: Sequence[Intent]) -> None:
        """Stop runs of this process, because the store says so."""
        logs = self.writer.logs
        self._deliver([(logs[intent.run_id], intent.stop) for intent in intents if intent.run_id in logs])

    def _deliver(self, stops: Sequence[tuple[RunLog, StopIntent]]) -> None:
        """Stop runs of this process, and acknowledge that; has no effect on those that have done so already."""
        stops = [(log, intent) for log, intent in stops if log.acknowledging is not intent.mode]
        self._stop_runs((log, intent) for log, intent in stops if not log.knows(intent.mode))
        news = [log for log, intent in stops if self.writer.acknowledge(log, intent.mode)]
        if news:
            self.writer.calls.request_flush(_loop_of(news[0].run) or asyncio._get_running_loop())

    @staticmethod
    def _stop_runs(stops: Iterable[tuple[RunLog, StopIntent]]) -> None:
        """Stop runs of this process, marking all of them before any reacts."""
        orders: list[Stop] = []
        reasons: dict[tuple[int, float], Reason] = {}  # usually one for all
        for log, intent in stops:
            mode, run = intent.mode, log.run
            if not log.knows(mode):
                log.known_mode = mode  # so that the log writer does not store the stop again
            if run.first_stop is None or max(stop.mode.rank for stop in run.stops()) < mode.rank:
                which = id(intent), log.offset
                if which not in reasons:
                    reasons[which] = reason_on_store_clock(intent.reason, -log.offset)
                orders.append(Stop(run, mode, reasons[which], intent.grace))
        if orders:
            RunNode.tell(orders)

    def local_in_flight(self, run_ids: Iterable[str]) -> tuple[dict[str, tuple[str, ...] | None], list[str]]:
        """Return the open boundaries of the runs of this process, and the ids of the others: their logs have them."""
        in_flight: dict[str, tuple[str, ...] | None] = {}
        elsewhere: list[str] = []
        for run_id in run_ids:
            log = self.writer.logs.get(run_id)
            if log is None:
                elsewhere.append(run_id)
            else:
                in_flight[run_id] = open_in(log.run)
        return in_flight, elsewhere

    def roots(self) -> list[RunNode]:
        """Return the runs of this process that have no parent in this process."""
        runs = [log.run for log in list(self.writer.logs.values())]
        return [run for run in runs if run.parent is None or run.parent.id not in self.writer.logs]

    def shut_down(self, mode: Mode = Mode.GRACEFUL) -> float:
        """Refuse new runs, stop those of this process, and return the seconds after which all have ended."""
        self.is_closing = True
        roots = self.roots()
        for run in roots:
            run.stop(mode, _shutdown())
            if any((stop.grace or 0.0) > run.policy.grace for stop in run.stops()):
                # An earlier stop may have a longer grace, which must not delay the shutdown.
                harder = partial(run.stop, Mode.IMMEDIATE, _shutdown())
                control.get().call_at(clock.now() + run.policy.grace, harder)
        return max((run.policy.total(mode) for run in roots), default=0.0)

    def wait_for_end(self, seconds: float) -> bool:
        """Block until all runs of this process have ended, then a little longer until their ends are stored."""
        deadline = clock.now() + SHUTDOWN_MARGIN
        for reply in list(self._starting.values()):
            with contextlib.suppress(Exception):
                reply.result(max(0.0, deadline - clock.now()))
        logs = list(self.writer.logs.values())
        deadline = clock.now() + seconds
        for log in logs:
            ended = threading.Event()
            log.run.when_ended(ended.set)
            ended.wait(min(max(0.0, deadline - clock.now()), threading.TIMEOUT_MAX))
        deadline = clock.now() + SHUTDOWN_MARGIN
        is_stored = True
        for log in logs:
            try:
                self.writer.when_stored(log).result(max(0.0, deadline - clock.now()))
            except StoreError:
                is_stored = False
        return is_stored

    def _kill_all(self) -> Callable[[], bool]:
        logs = list(self.writer.logs.values())
        if self.meter is not None:
            self.meter.fenced(len(logs))
        for run in self.roots():
            run.stop("kill", _fenced())
        return lambda: not any(self.writer.logs.get(log.run.id) is log for log in logs)

    # Maintenance

    def _end_orphans(self) -> None:
        for pid in end_orphans():
            _logger.warning("process %s was killed: the worker that started it is dead", pid)

    def _on_heartbeat(self) -> None:
        self.writer.retry()
        self._look_for_unconfirmed()
        control.for_stores().call_at(clock.now(), self._end_orphans)
        now = self.store.now()
        if self._keep_days is not None and now - self._purged_at > _PURGE_SECONDS:
            self._purged_at = now
            self._purge(now - self._keep_days * _DAY)

    def _purge(self, before: float) -> None:
        def on_purged(reply: StoreFuture[int]) -> None:
            try:
                count = reply.result()
            except Exception as error:
                _logger.warning("old runs could not be deleted: %s", error)
                return
            if count >= _PURGED_AT_ONCE and self.lease.is_open:
                control.for_stores().call_at(clock.now(), lambda: self._purge(before))

        self.store.purge(before, _PURGED_AT_ONCE).then(on_purged)


def live_of(key: str, owner: str | None) -> Filter:
    """Return a filter for the live runs of a conversation."""
    check_key(key)
    live = frozenset(status for status in Status if not status.terminal)
    return Filter(key=key, owner=owner, status=live)


def _above(run: RunNode) -> Iterator[RunNode]:
    above = run.parent
    while above is not None:
        yield above
        above = above.parent


def _loop_of(run: RunNode) -> asyncio.AbstractEventLoop | None:
    """Return the event loop whose task executes a run, if one does."""
    loop: asyncio.AbstractEventLoop | None = None if run.main is None else run.main.loop
    return loop


def _fenced() -> Reason:
    return Reason.of("its worker is fenced", kind=ReasonKind.POLICY)


def _shutdown() -> Reason:
    return Reason.of("the worker shuts down", kind=ReasonKind.SHUTDOWN)


def _is_closed(receipt: Receipt) -> bool:
    return receipt.final or receipt.acknowledged_at is not None


def is_over(record: RunRecord) -> bool:
    """Return whether a run has ended."""
    return record.over


def is_acknowledged(record: RunRecord) -> bool:
    """Return whether a stopped run has closed its gates, or has ended."""
    return record.over or (record.stop is not None and record.acknowledged == record.stop.mode)


def open_in(run: RunNode) -> tuple[str, ...]:
    """Return the open boundaries of a run of this process."""
    members = list(run.members or ())
    return tuple(member.label for member in members if member.role is Role.BOUNDARY)  # type: ignore[attr-defined]


# The changes of stored runs: how often they are looked for, in which form they are told, and who listens to all.

_FIRST_LOOK_SECONDS = 0.002
LOOK_SECONDS = 2.0  # the longest pause without a notification, which may be lost
_FIELDS = tuple(one.name for one in fields(Event))
_CLOSE_SECONDS = 5.0
_END = 2**53
"""A place after every event."""


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each read of the record.

    The pauses begin short, because a stopped run closes its gate within a millisecond, and the notification of a change
    by another process may take longer than that.
    """
    pause = _FIRST_LOOK_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LOOK_SECONDS)


def to_tree_events(tail: Tail) -> Iterator[TreeEvent]:
    """Yield the events of a tail with their places."""
    for place, event in tail.events:
        yield TreeEvent(place=place, **{name: getattr(event, name) for name in _FIELDS})


def is_end(event: Event, run_id: str) -> bool:
    """Return whether an event is the end of a run."""
    return event.type is EventType.DONE and event.run_id == run_id


class Listener:
    """Calls a function with events as they come, one after the other, on a separate thread, until it is closed.

    Errors of the function are logged.
    """

    def __init__(
        self, store: Store, call: Callable[[TreeEvent], object], below: str | None, types: Collection[EventType]
    ) -> None:
        self._store = store
        self._call = call
        self._below = below
        self._types = types
        self._news = threading.Event()
        self._is_closed = False
        self._subscription = store.watch(ANY, self._news.set)  # first, so that no event is missed in between
        self._place = store.tail(_END, 1).result().place
        self._thread = threading.Thread(target=self._follow, name="stoppable-listener", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return not self._is_closed

    def close(self) -> None:
        """Stop calling the function; waits some seconds for a call in progress, unless it is called from there."""
        self._is_closed = True
        self._subscription.close()
        self._news.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self) -> None:
        while not self._is_closed:
            self._news.clear()
            try:
                tail = self._store.tail(self._place, types=self._types, below=self._below).result()
            except RunNotFound:  # it was purged, or has not started
                tail = Tail(place=self._place)
            except StoreError as error:
                if self._is_closed:
                    return
                _logger.warning("a listener waits for the store: %s", error)
                tail = Tail(place=self._place)
            self._place = tail.place
            for event in to_tree_events(tail):
                if self._is_closed:
                    return
                self._tell(event)
            if not tail.has_more:
                self._news.wait(LOOK_SECONDS)

    def _tell(self, event: TreeEvent) -> None:
        try:
            self._call(event)
        except Exception:
            _logger.exception("run %s: a listener raised an error", event.run_id)


# What the async and the blocking handles of a stored run have in common.


class RemoteHandleMixin:
    """The common part of async and blocking handles of a run in another process."""

    __slots__ = ()

    _id: str

    @property
    def id(self) -> str:
        """The run's id."""
        return self._id

    @property
    def run(self) -> Run:
        """Raise an error: the run is in another process."""
        raise InvalidArgument(f"run {self._id} is not executed by this process: use record()")

    @property
    def status(self) -> Status:
        """Raise an error: only the store knows the status."""
        raise InvalidArgument(f"run {self._id} is not executed by this process: use record()")

    def __repr__(self) -> str:
        return f"<RemoteHandle {self._id}>"


def stop_if_reader_left(run: RunNode, on_disconnect: OnDisconnect) -> None:
    """Stop a run whose reader has left its stream, if it was started that way."""
    if on_disconnect == "stop" and run.outcome is None:
        run.stop(reason=Reason.of("its reader left", kind=ReasonKind.DISCONNECT))


def never_began(record: RunRecord) -> bool:
    """Return whether a run was stopped before its body began."""
    return record.status is Status.STOPPED and record.started_at is None


def stored_receipt(record: RunRecord) -> Receipt | None:
    """Return the receipt in a record, or None if the run was not stopped."""
    if record.stop is None or record.receipt is not None:
        return record.receipt
    return receipt_of(record, Answer.ACCEPTED, record.status, record.ended_at)


def raise_unless_completed(run_id: str, outcome: Outcome[Any]) -> Any:
    """Return the value of a run, or raise RunStopped, RunFailed or RunLost."""
    match outcome.status:
        case Status.COMPLETED:
            return outcome.result
        case Status.FAILED:
            raise RunFailed(run_id, outcome) from outcome.error
        case Status.LOST:
            raise RunLost(run_id, outcome)
        case _:
            raise RunStopped(run_id, outcome)

"""The logic of a supervisor, without waiting; the async and the blocking supervisor add the waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from stoppable._core import clock
from stoppable._core.node import RunNode
from stoppable._core.policy import seconds
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.receipt import write
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer, Receipt, Stop
from stoppable._engine import control
from stoppable._engine.isolation.values import Values
from stoppable._engine.processes import inherited_fds
from stoppable._engine.processes.orphans import end_orphans
from stoppable.errors import InvalidArgument, StoppableError, StoreError
from stoppable.records import EventType, RunRecord, Selector, StopAnswer, StopIntent, StopResult, TreeEvent
from stoppable.stores.base import Intent, Registered, Store
from stoppable.stores.future import StoreFuture, settle
from stoppable.stores.rules import receipt_of
from stoppable.stores.urls import store_of
from stoppable.supervisor.jobs import Job, Options
from stoppable.supervisor.lease import Lease
from stoppable.supervisor.merged_events import Listener
from stoppable.supervisor.recorder import Recorder, RunLog
from stoppable.supervisor.selection import BulkStop, StopRequest
from stoppable.supervisor.serialization import shifted, shifted_reason, so_far

_logger = logging.getLogger("stoppable")

SHUTDOWN_MARGIN = 5.0
"""How long a shutdown waits, after the runs have ended, until their ends are stored."""

_ACKNOWLEDGE_SECONDS = 1.0
_PURGE_SECONDS = 3600.0
_PURGED_AT_ONCE = 1000
_DAY = 86_400.0


class Asked(NamedTuple):
    """A stop that is being stored, and the local runs that it has already stopped."""

    reply: StoreFuture[StopResult]
    told: Mapping[str, RunLog]


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
        self.lease: Lease = Lease(self.store, ttl, deliver=self._deliver, fenced=self._kill_all, beaten=self._beaten)
        self.recorder: Recorder = Recorder(self.store, lambda: self.lease.worker)
        self._keep_days = None if keep_days is None else seconds(keep_days, "keep_days", "days")
        self._keep_input = keep_input
        self._worker_values = Values.PICKLE if unpickle else Values.JSON
        self._purged_at = -math.inf
        self._listeners: list[Listener] = []
        self._starting: dict[RunLog, StoreFuture[Registered]] = {}
        self.is_closing: bool = False
        self._opening = threading.Lock()
        self._was_opened = False

    def open(self) -> None:
        """Connect and take a lease, once; blocks for a moment."""
        with self._opening:
            if self._was_opened:
                raise InvalidArgument("this supervisor was already used: make a new Supervisor for each block")
            self.store.open()
            inherited_fds.add(self._inherited)
            try:
                self.lease.open()
            except BaseException:
                inherited_fds.remove(self._inherited)
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
            alive = [log.run.id for log in list(self.recorder.logs.values()) if log.run.is_alive()]
            if is_open and self.lease.close(give_back=not alive):
                if alive:
                    _logger.error("runs still alive, and lost once the lease has expired: %s", ", ".join(alive))
                inherited_fds.remove(self._inherited)
                for listener in self._listeners:
                    listener.close()
                self.store.close()
                self.recorder.close()

    def end(self, seconds: float) -> None:
        """Wait until all runs of this process have ended, and close; blocks. The runs were stopped before."""
        self.wait_for_end(seconds)
        self.close()

    def _inherited(self) -> tuple[int, ...]:
        return self.store.inherited

    def listen(self, call: Callable[[TreeEvent], object], run_id: str | None, types: Collection[EventType]) -> Listener:
        """Call a function with new events, until the listener or the supervisor is closed."""
        listener = Listener(self.store, call, run_id, types)
        self._listeners = [known for known in self._listeners if known.is_open] + [listener]
        return listener

    # Starting

    def job(self, agent: Callable[..., Any], args: tuple[Any, ...], options: Options, *, in_loop: bool) -> Job:
        """Return a job, or raise an error that says which argument is invalid."""
        return Job.of(
            agent, args, options, in_loop=in_loop, keep_input=self._keep_input, worker_values=self._worker_values
        )

    def register(self, job: Job) -> tuple[RunLog, StoreFuture[Registered]]:
        """Store a run that is about to start.

        It can be stopped from now on, even before it begins: the store gets the run before such a stop, and by the time
        it answers the stop, this process knows whether the run is its own. Until then the id may turn out to belong to
        a run of another process, and only that process can close its gate.
        """
        worker = self.lease.worker
        log = self.recorder.log(job.run, worker, job.options.key)
        if self.is_closing:
            self.recorder.drop(log)
            raise StoppableError("the supervisor is shutting down and takes no new runs")
        reply = self._starting[log] = self.store.register(job.to_record(worker), job.request)
        reply.then(partial(self._answered, log))
        return log, reply

    def _answered(self, log: RunLog, reply: StoreFuture[Registered]) -> None:
        try:
            self.registered(log, reply.result())
        except Exception:  # the caller gets the error
            self.recorder.drop(log)
        self._starting.pop(log, None)

    def registered(self, log: RunLog, answer: Registered) -> bool:
        """Return whether this process has to start the run."""
        if not answer.created or answer.record.over:
            self.recorder.drop(log)
            return False
        self.recorder.adopt(log, answer.record.epoch)
        if self.is_closing:
            log.run.stop(reason=_shutdown())
        if log.worker != self.lease.worker:  # fenced meanwhile: the runs of the old lease were killed, but not this one
            log.run.stop("kill", _fenced())
        return True

    def abandon(self, log: RunLog, reply: StoreFuture[Registered]) -> None:
        """End a run whose start was cancelled while it was being registered; it never begins."""

        def answered(reply: StoreFuture[Registered]) -> None:
            try:
                is_ours = self.registered(log, reply.result())
            except Exception:
                self.recorder.drop(log)
                return
            if is_ours:
                log.run.stop(reason=Reason.of("its start was cancelled", kind=ReasonKind.EXTERNAL))
                log.run.skip()

        reply.then(answered)

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
        owner: str | None,
        *,
        if_unknown_hold: bool | None,
        idempotency_key: str | None,
    ) -> StopRequest:
        """Return the store request of a stop with a key."""
        if run_id is not None:
            raise InvalidArgument("give the id of a run or a key, not both")
        selector = Selector(key=key, owner=owner)
        return StopRequest(selector, owner=owner, if_unknown_hold=if_unknown_hold, idempotency_key=idempotency_key)

    def ask(self, request: StopRequest, intent: StopIntent) -> Asked:
        """Store a stop; the runs of this process are stopped at once, and only the answer waits for the store (G14).

        With an idempotency key the store comes first: if it has answered the key before, nothing is stopped.
        """
        keep = partial(
            self.store.request_stop,
            request.target,
            intent,
            idempotency_key=request.idempotency_key,
            hold=request.hold,
            dry_run=request.dry_run,
            owner=request.owner,
            if_unknown_hold=request.if_unknown_hold,
            asked_at=intent.reason.at,
        )
        is_at_once = request.idempotency_key is None and not request.dry_run
        logs = self._here(request.target, request.owner) if is_at_once else []
        if not logs:
            return Asked(keep(), {})
        asked = Asked(StoreFuture(), {log.run.id: log for log in logs})
        outbox, put = self.recorder.outbox, partial(self._keep, asked, keep)
        is_news = any(log.known_mode is None or log.known_mode < intent.mode for log in logs)
        if not is_news and outbox.is_idle:
            put()
            return asked
        outbox.add(put)  # before the runs are stopped, so that what they write comes after it
        self._tell((log, intent) for log in logs)
        outbox.ring(_loop_of(logs[0].run) or asyncio._get_running_loop())
        return asked

    def _here(self, target: str | Selector, owner: str | None) -> list[RunLog]:
        """Return the runs of this process that a stop selects.

        The store knows them all when it gets the stop, because children are registered through the same outbox.
        """
        logs = self.recorder.logs
        if isinstance(target, str):
            found = [logs[target]] if target in logs else []
        else:
            found = [
                log
                for log in list(logs.values())
                if target.matches(owner=log.run.owner, labels=log.run.labels, name=log.run.name, key=log.key)
            ]
        meant = {log.run: log for log in found if owner is None or owner == log.run.owner}
        return [log for run, log in meant.items() if meant.keys().isdisjoint(_above(run))]

    def _keep(self, asked: Asked, request: Callable[[], StoreFuture[StopResult]]) -> None:
        def answered(reply: StoreFuture[StopResult]) -> None:
            result: StopResult | None = None
            error: Exception | None = None
            try:
                result = reply.result()
            except StoreError as failed:
                for log in asked.told.values():
                    log.known_mode = None  # the recorder stores it once the store answers
                error = StoreError(f"{failed}. The runs of this process were told to stop anyway")
            except Exception as refused:
                error = refused
            settle([(asked.reply, result, error)])

        request().then(answered)

    def answer(self, run_id: str, result: StopResult, intent: StopIntent, told: Mapping[str, RunLog]) -> Receipt:
        """Carry out the stop of one run and return its receipt so far; the run may not exist yet."""
        if result.answers:
            return self._carry_out(result.answers[0], intent, told)
        return Receipt(
            run_id=run_id,
            answer=Answer.ACCEPTED,
            status=Status.PENDING,
            mode=intent.mode,
            reason=intent.reason,
            requested_at=intent.reason.at,
            acknowledged_at=intent.reason.at,  # there is no gate to close: the run will be stopped before it begins
        )

    def bulk(self, result: StopResult, intent: StopIntent, told: Mapping[str, RunLog], *, dry_run: bool) -> BulkStop:
        """Carry out a bulk stop, or return a preview of it."""
        if dry_run:
            told_of = (self.receipt(one.record, one.answer) for one in result.answers)
            return BulkStop(told_of, result.hold, result.waits_until)
        # Stop all of them first; writing and answering can wait.
        records = [one.record for one in result.answers if one.record.id not in told]
        self._tell((log, intent) for record in records if (log := self._log_of(record, told)) is not None)
        receipts = [self._carry_out(one, intent, told) for one in result.answers]
        return BulkStop(receipts, result.hold, result.waits_until)

    @staticmethod
    def unsettled(bulk: BulkStop, wait: float | None) -> tuple[list[str], float]:
        """Return the runs to wait for, and for how many seconds (``worth_waiting``)."""
        is_settled = attrgetter("final") if wait else _is_closed
        return [receipt.run_id for receipt in bulk if not is_settled(receipt)], wait or _ACKNOWLEDGE_SECONDS

    def settled(self, bulk: BulkStop, records: Mapping[str, RunRecord]) -> BulkStop:
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
    def worth_waiting(result: StopResult, receipt: Receipt, wait: float | None) -> float | None:
        """Return how many seconds to wait after a stop: for the end if ``wait`` is given, otherwise for closed gates.

        A run that does not exist yet has no gates: it will be stopped before it begins.
        """
        if not result.answers or receipt.final or (receipt.acknowledged_at is not None and not wait):
            return None
        return wait or _ACKNOWLEDGE_SECONDS

    def _carry_out(self, answered: StopAnswer, intent: StopIntent, told: Mapping[str, RunLog]) -> Receipt:
        record = answered.record
        log = self._log_of(record, told)
        if log is None or record.over:
            return self.receipt(record, answered.answer)
        self._tell([(log, intent)])
        self.recorder.acknowledge(log.run, intent.mode)
        self.recorder.outbox.ring(asyncio._get_running_loop())
        if not log.run.token.stopped:  # it ended on its own first; its record, which is about to be stored, says so
            return self.receipt(record, answered.answer)
        receipt = shifted(write(log.run, answered.answer), log.offset)
        return so_far(receipt) if receipt.final else receipt  # final once the end is stored

    def _log_of(self, record: RunRecord, told: Mapping[str, RunLog]) -> RunLog | None:
        """Return the log of a stored run if this worker executes it; otherwise its own worker answers for it."""
        log = told.get(record.id) or self.recorder.logs.get(record.id)
        return log if log is not None and log.worker == record.worker else None

    def _deliver(self, intents: Sequence[Intent]) -> None:
        found = [(log, intent.stop) for intent in intents if (log := self.recorder.logs.get(intent.run_id)) is not None]
        self._tell(found)
        for log, stop in found:
            self.recorder.acknowledge(log.run, stop.mode)
        if found:
            self.recorder.outbox.ring(_loop_of(found[0][0].run))

    @staticmethod
    def _tell(found: Iterable[tuple[RunLog, StopIntent]]) -> None:
        """Carry out stored stops on the runs of this process, marking all runs before any reacts; idempotent."""
        stops: list[Stop] = []
        reasons: dict[tuple[int, float], Reason] = {}  # usually one for all
        for log, intent in found:
            mode, run = intent.mode, log.run
            if log.known_mode is None or log.known_mode < mode:
                log.known_mode = mode  # so that the recorder does not store the stop again
            if run.first_stop is None or max(stop.mode.rank for stop in run.stops()) < mode.rank:
                which = id(intent), log.offset
                if which not in reasons:
                    reasons[which] = shifted_reason(intent.reason, -log.offset)
                stops.append(Stop(run, mode, reasons[which], intent.grace))
        RunNode.tell(stops)

    def roots(self) -> list[RunNode]:
        """Return the runs of this process that have no parent in this process."""
        runs = [log.run for log in list(self.recorder.logs.values())]
        return [run for run in runs if run.parent is None or run.parent.id not in self.recorder.logs]

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
        logs = list(self.recorder.logs.values())
        deadline = clock.now() + seconds
        for log in logs:
            ended = threading.Event()
            log.run.when_ended(ended.set)
            ended.wait(min(max(0.0, deadline - clock.now()), threading.TIMEOUT_MAX))
        deadline = clock.now() + SHUTDOWN_MARGIN
        is_kept = True
        for log in logs:
            try:
                self.recorder.kept(log).result(max(0.0, deadline - clock.now()))
            except StoreError:
                is_kept = False
        return is_kept

    def _kill_all(self) -> Callable[[], bool]:
        logs = list(self.recorder.logs.values())
        for run in self.roots():
            run.stop("kill", _fenced())
        return lambda: not any(self.recorder.logs.get(log.run.id) is log for log in logs)

    # Maintenance

    def _end_orphans(self) -> None:
        for pid in end_orphans():
            _logger.warning("process %s was killed: the worker that started it is dead", pid)

    def _beaten(self) -> None:
        self.recorder.retry()
        control.for_stores().call_at(clock.now(), self._end_orphans)
        now = self.store.now()
        if self._keep_days is not None and now - self._purged_at > _PURGE_SECONDS:
            self._purged_at = now
            self._purge(now - self._keep_days * _DAY)

    def _purge(self, before: float) -> None:
        def purged(reply: StoreFuture[int]) -> None:
            try:
                forgotten = reply.result()
            except Exception as error:
                _logger.warning("old runs could not be deleted: %s", error)
                return
            if forgotten >= _PURGED_AT_ONCE and self.lease.is_open:
                control.for_stores().call_at(clock.now(), lambda: self._purge(before))

        self.store.purge(before, _PURGED_AT_ONCE).then(purged)


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

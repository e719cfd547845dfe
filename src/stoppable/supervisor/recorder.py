"""Stores what the runs of this process do, in order and without blocking them."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stoppable import _json
from stoppable._core import clock
from stoppable._core.hooks import Callback, Moment
from stoppable._core.node import RunNode
from stoppable._core.receipt import write
from stoppable._core.sink import Sink
from stoppable._core.state import Fate, Mode, Status
from stoppable._core.stop import Answer, Receipt, Stop
from stoppable.errors import RunConflict, StoreError
from stoppable.records import Draft, EventType, OutcomeRecord, StopIntent
from stoppable.stores.base import Registered, Store
from stoppable.stores.future import Settled, StoreFuture, settle
from stoppable.stores.rules import status_event
from stoppable.supervisor.outbox import Outbox
from stoppable.supervisor.serialization import (
    METADATA_BYTES,
    VALUE_BYTES,
    record_at_once,
    record_elsewhere,
    record_of_child,
    shifted,
    shifted_reason,
)

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary

_logger = logging.getLogger("stoppable")

_DRAFTS_KEPT = 10_000  # for each run, while the store does not answer
_NAMES_LOGGED = 20
_CLOCKS_DIFFER = 0.001  # seconds by which the two clocks may drift unnoticed


class RunLog:
    """What is not yet stored of one run; only one store call is in progress at a time, which keeps the order."""

    __slots__ = (
        "above",
        "acknowledged",
        "acknowledging",
        "boundaries",
        "drafts",
        "dropped",
        "epoch",
        "finished",
        "hook",
        "is_busy",
        "is_collected",
        "is_failing",
        "is_held_up",
        "is_over",
        "is_registered",
        "key",
        "known_mode",
        "numbers",
        "offset",
        "outcome",
        "receipt",
        "run",
        "unkept_below",
        "worker",
    )

    def __init__(self, run: RunNode, offset: float, worker: str = "", key: str | None = None) -> None:
        self.run: RunNode = run
        self.key: str | None = key
        self.offset: float = offset  # from this process's clock to the store's; one value for the whole run
        self.worker: str = worker  # the worker that registered it: a run of another worker may have the same id
        self.epoch: int = 1
        self.is_registered: bool = False
        self.is_busy: bool = False
        self.is_collected: bool = False  # a call is queued that stores everything noted until then
        self.is_failing: bool = False  # the store refused the last call
        self.is_held_up: bool = False  # no calls until the next heartbeat
        self.is_over: bool = False
        self.above: RunLog | None = None  # the log of its parent, once the run has ended
        self.unkept_below: int = 0  # children that have ended, but whose ends are not stored
        self.drafts: list[Draft] = []
        self.boundaries: dict[Boundary, int] = {}  # open boundaries, with their numbers
        self.numbers: itertools.count[int] = itertools.count(1)
        self.dropped: int = 0
        self.known_mode: Mode | None = None  # the mode of the stop that the store has
        self.acknowledging: Mode | None = None  # the hardest stop that is acknowledged, or is about to be
        self.acknowledged: tuple[Mode, Receipt] | None = None
        self.hook: Callback | None = None
        self.receipt: Receipt | None = None  # once it is final; written once, because that of a large tree takes long
        self.outcome: OutcomeRecord | None = None  # once it is stored
        self.finished: StoreFuture[None] | None = None  # made on demand, for callers that wait until the end is stored


class Recorder(Sink):
    """The sink of every run of a supervisor."""

    __slots__ = ("_is_closed", "_kept", "_lock", "_lost", "_offset", "_store", "_worker", "logs", "outbox")

    def __init__(self, store: Store, worker: Callable[[], str]) -> None:
        self._store = store
        self._worker = worker
        self._lock = threading.Lock()
        self._offset = math.inf
        self._is_closed = False
        self._kept: list[Settled] = []  # callers whose ends are stored now
        self._lost: dict[RunNode, StoreFuture[None]] = {}  # runs that may be alive, and whether the store knows that
        self.logs: dict[str, RunLog] = {}
        self.outbox: Outbox = Outbox(self._tell_kept)

    def log(self, run: RunNode, worker: str = "", key: str | None = None) -> RunLog:
        """Return a new log for a run; it is not in use before ``adopt``, because the id may belong to another run."""
        offset = self._store.now() - clock.now()
        if abs(offset - self._offset) > _CLOCKS_DIFFER:
            self._offset = offset
        return RunLog(run, self._offset, worker, key)

    # Runs that a caller starts

    def adopt(self, log: RunLog, epoch: int) -> None:
        """Begin to store what a run does, once the store has registered it for this worker; idempotent."""
        run = log.run
        with self._lock:
            if log.is_registered:
                return
            log.epoch, log.is_registered = epoch, True
            self.logs[run.id] = log
            above, run.sink = run.parent, self
            if above is not None and above.sink is not self:
                # The sink gets the run's own stops; this token has those of an ancestor that is not stored.
                log.hook = Callback(run, Moment.STOP, lambda: self._later(log))
                run.add_hook(log.hook)

    def drop(self, log: RunLog) -> None:
        """Discard a run that was not registered; it never begins."""
        log.run.sink = None  # including one inherited from its parent: the id may belong to a run that goes on
        log.run.skip()

    # Reports of runs

    def began(self, run: RunNode) -> None:
        """Record the new status; for a child, begin a log."""
        if run.id not in self.logs:
            log = self.logs[run.id] = self.log(run)
            self._soon(log)
        else:
            self._note(run, status_event(Status.RUNNING))

    def stopping(self, stop: Stop) -> None:
        """Record a stop that is not in the store; may be called in a signal handler."""
        log = self._log_of(stop.target)
        if log is not None and (log.known_mode is None or log.known_mode < stop.mode):
            self._later(log)

    def ended(self, run: RunNode) -> None:
        """Record the outcome."""
        log = self._log_of(run)
        if log is not None:
            if run.status is Status.LOST:
                self._lost[run] = self.kept(log)
            self.outbox.put(partial(self._end, log))

    def died(self, run: RunNode) -> None:
        """Record that a run has ended which is ``lost`` in the store: a late report, which is an event (G2)."""

        def is_kept(reply: StoreFuture[None]) -> None:
            with contextlib.suppress(StoreError):  # it was closed
                reply.result()
                self._store.finish(run.id, 0, OutcomeRecord(status=Status.STOPPED), None)

        kept = self._lost.pop(run, None)
        if kept is not None:
            kept.then(is_kept)

    def _end(self, log: RunLog) -> None:
        if log.finished is _KEPT:
            return
        log.is_over = True  # in its turn: the runs below it ended first
        if log.run.first_stop is not None:
            log.receipt = shifted(write(log.run, Answer.ACCEPTED), log.offset)
        if log.run.status is Status.LOST and log.receipt is not None:
            left = [node.name for node in log.receipt.nodes if node.kind != "run" and node.fate in _LEFT]
            names = ", ".join([*left[:_NAMES_LOGGED], *(["…"] if len(left) > _NAMES_LOGGED else [])])
            _logger.warning("run %s (%s) is lost, still alive: %s", log.run.id, log.run.name, names)
        parent = log.run.parent
        log.above = None if parent is None else self._log_of(parent)
        if log.above is not None:
            log.above.unkept_below += 1
        self._advance(log)

    def entered(self, run: RunNode, boundary: Boundary) -> None:
        """Record a boundary, with its number within the run."""
        log = self._log_of(run)
        if log is None:
            return
        number = log.boundaries[boundary] = next(log.numbers)
        data: dict[str, Any] = {"kind": boundary.kind, "name": boundary.name, "boundary": number}
        if run.closed:
            data["afterStop"] = True
        self._add(log, Draft(type=EventType.ENTERED, data=data, at=self._store.now()))

    def left(self, run: RunNode, boundary: Boundary) -> None:
        """Record the end of a boundary, and its fate if it was open at a stop."""
        log = self._log_of(run)
        if log is None:
            return
        data: dict[str, Any] = {"kind": boundary.kind, "name": boundary.name}
        number = log.boundaries.pop(boundary, None)
        if number is not None:  # otherwise it was entered before the run was stored
            data["boundary"] = number
        if boundary.fate is not None:
            data["fate"] = boundary.fate.value
        self._add(log, Draft(type=EventType.LEFT, data=data, at=self._store.now()))

    def partial(self, run: RunNode, value: object, *, appended: bool) -> None:
        """Record the partial of a run."""
        name = "delta" if appended else "value"
        self._collect(run, Draft(type=EventType.PARTIAL, data=_kept(name, value), at=self._store.now()))

    def annotated(self, run: RunNode, metadata: dict[str, object]) -> None:
        """Record facts about a run."""
        self._note(
            run, Draft(type=EventType.ANNOTATED, data=_kept("metadata", metadata, METADATA_BYTES), at=self._store.now())
        )

    def event(self, run: RunNode, kind: str, data: dict[str, object]) -> None:
        """Note progress."""
        told = {"name": str(kind), **_kept("data", data)}
        self._collect(run, Draft(type=EventType.PROGRESS, data=told, at=self._store.now()))

    def acknowledge(self, run: RunNode, mode: Mode) -> None:
        """Queue the acknowledgement of a stop, with what is in flight; the caller wakes the thread for stores."""
        log = self._log_of(run)
        if log is None or (log.acknowledging is not None and log.acknowledging >= mode):
            return
        log.acknowledging = mode
        self.outbox.add(partial(self._when_closed, log, mode))

    def _when_closed(self, log: RunLog, mode: Mode) -> None:
        run = log.run
        if run.outcome is not None:
            return  # the record of its end includes it

        def closed() -> None:
            log.acknowledged = (mode, shifted(write(run, Answer.ACCEPTED), log.offset))
            self._soon(log)

        stops = run.stops()
        if stops:
            stops[-1].when_acknowledged(closed)

    def _log_of(self, run: RunNode) -> RunLog | None:
        """Return the log of this very run, not that of another run with the same id."""
        log = self.logs.get(run.id)
        return log if log is not None and log.run is run else None

    def _note(self, run: RunNode, draft: Draft) -> None:
        log = self._log_of(run)
        if log is not None:
            self._add(log, draft)

    def _collect(self, run: RunNode, draft: Draft) -> None:
        """Record a frequent event, such as a token of a model, which may be stored a little later."""
        log = self._log_of(run)
        if log is None:
            return
        self._keep(log, draft)
        if not (log.is_busy or log.is_collected):
            log.is_collected = True
            self.outbox.collect(partial(self._advance, log))

    def _add(self, log: RunLog, draft: Draft) -> None:
        self._keep(log, draft)
        if not log.is_busy:
            self._soon(log)

    def _keep(self, log: RunLog, draft: Draft) -> None:
        if len(log.drafts) < _DRAFTS_KEPT:
            log.drafts.append(draft)
        else:
            log.dropped += 1

    def _soon(self, log: RunLog) -> None:
        self.outbox.put(partial(self._advance, log))

    def _later(self, log: RunLog) -> None:
        # Not through the loop: this may be a signal handler that interrupted its wait.
        self.outbox.add(partial(self._advance, log))
        self.outbox.wake()

    def _untold(self, log: RunLog) -> tuple[StopIntent, float] | None:
        """Return the stop of a run that is not in the store, and when it was requested.

        Stops of a stored ancestor are in the store already.
        """
        run = log.run
        is_top = run.parent is None or run.parent.sink is not self
        stops = [stop for stop in run.stops() if stop.target is run or is_top]
        if not stops:
            return None
        strongest = max(stops, key=lambda stop: stop.mode.rank)
        if log.known_mode is not None and log.known_mode >= strongest.mode:
            return None
        reason = shifted_reason(stops[0].reason, log.offset)
        asked_at = stops[0].requested_at + log.offset
        return StopIntent(mode=strongest.mode, reason=reason, grace=strongest.grace), asked_at

    # Writing

    def retry(self) -> None:
        """Retry the calls that the store last refused."""
        for log in list(self.logs.values()):
            if not log.is_busy:
                log.is_held_up = False
                self._soon(log)

    def _advance(self, log: RunLog) -> None:
        """Make the next call for a run, on the thread for stores; if one is in progress, its reply makes the next."""
        run = log.run
        log.is_collected = False  # first, so that later reports are stored after this
        if log.is_busy or log.is_held_up or log.finished is _KEPT:
            return
        if not log.is_registered:
            self._register(log)
        elif run.first_stop is not None and (untold := self._untold(log)) is not None:
            self._tell_stop(log, *untold)
        elif log.is_over:
            if not log.unkept_below:  # the end of a run becomes visible after the ends below it
                self._finish(log)
        elif log.acknowledged is not None:
            self._acknowledge(log)
        elif log.drafts:
            self._append(log)

    def _register(self, log: RunLog) -> None:
        log.worker = self._worker()
        reply = self._store.register(record_of_child(log.run, log.worker), log.run.id)

        def registered() -> None:
            log.is_registered = True
            if not _is_kept(reply, log.worker):
                _logger.warning("run %s was not stored: another run has its id", log.run.id)
                self._over_with(log)

        self._when_done(log, reply, registered)

    def _tell_stop(self, log: RunLog, intent: StopIntent, asked_at: float) -> None:
        def told() -> None:
            if log.known_mode is None or log.known_mode < intent.mode:
                log.known_mode = intent.mode
            self.acknowledge(log.run, intent.mode)

        self._when_done(log, self._store.request_stop(log.run.id, intent, asked_at=asked_at), told)

    def _acknowledge(self, log: RunLog) -> None:
        closed = log.acknowledged
        assert closed is not None, "the gate is closed"

        def told() -> None:
            if log.acknowledged is closed:
                log.acknowledged = None

        self._when_done(log, self._store.acknowledge(log.run.id, log.epoch, *closed), told)

    def _append(self, log: RunLog) -> None:
        count = len(log.drafts)

        def appended() -> None:
            del log.drafts[:count]

        self._when_done(log, self._store.append(log.run.id, log.epoch, log.drafts[:count]), appended)

    def _finish(self, log: RunLog) -> None:
        run, offset = log.run, log.offset
        outcome = run.outcome
        assert outcome is not None, "it has ended"
        if log.outcome is None:
            log.outcome = record_at_once(outcome, offset)
        if log.outcome is None:
            log.is_busy = True
            record_elsewhere(outcome, offset, partial(self._written, log))
            return
        if log.dropped:
            dropped = {"message": f"{log.dropped} events were dropped while the store did not answer"}
            log.drafts.append(Draft(type=EventType.LOG, data=dropped))
            log.dropped = 0  # reported once, however often the call is repeated

        reply = self._store.finish(run.id, log.epoch, log.outcome, log.receipt, list(log.drafts))
        self._when_done(log, reply, partial(self._over_with, log))

    def _written(self, log: RunLog, outcome: OutcomeRecord) -> None:
        log.outcome, log.is_busy = outcome, False
        self._soon(log)

    def _over_with(self, log: RunLog) -> None:
        """Discard the log of a run once everything is stored."""
        run = log.run
        if self.logs.get(run.id) is log:
            del self.logs[run.id]
        if log.hook is not None:
            run.withdraw(log.hook)
        with self._lock:
            waiting, log.finished = log.finished, _KEPT
        if waiting is not None:
            self._kept.append((waiting, None, None))
        if log.above is not None:
            log.above.unkept_below -= 1
            self._advance(log.above)

    def _when_done(self, log: RunLog, reply: StoreFuture[Any], done: Callable[[], None]) -> None:
        log.is_busy = True
        # Replies are queued too, so that the end of a run is reported after the ends below it went to the store.
        reply.then(lambda reply: self.outbox.put(partial(self._replied, log, done, reply)))

    def _replied(self, log: RunLog, done: Callable[[], None], reply: StoreFuture[Any]) -> None:
        log.is_busy = False
        try:
            reply.result()
        except StoreError as error:
            if not log.is_failing:
                _logger.warning("run %s is not stored for now: %s", log.run.id, error)
            log.is_failing = log.is_held_up = True  # retry with the next heartbeat, not with every event
            return
        except Exception as error:
            # The run was reaped, or belongs to another worker: reports from here change nothing (G15).
            _logger.info("run %s: %s", log.run.id, error)
        log.is_failing = False
        done()
        self._advance(log)

    def _tell_kept(self) -> None:
        if self._kept:
            kept, self._kept = self._kept, []
            settle(kept)

    def kept(self, log: RunLog) -> StoreFuture[None]:
        """Return a reply that is settled when the end of a run is in the store."""
        with self._lock:
            if log.finished is None:
                if self._is_closed:
                    return StoreFuture.failed(_not_kept(log))
                log.finished = StoreFuture()
            return log.finished

    def close(self) -> None:
        """Settle waiting replies with an error: the end will not be stored."""
        with self._lock:
            self._is_closed = True
            waiting: list[Settled] = []
            for log in list(self.logs.values()):
                if log.finished is not None and log.finished is not _KEPT:
                    waiting.append((log.finished, None, _not_kept(log)))
                    log.finished = None
        settle(waiting)


def _not_kept(log: RunLog) -> StoreError:
    return StoreError(f"run {log.run.id}: its end was not stored: the supervisor was closed")


_LEFT = (Fate.ABANDONED, Fate.UNREACHABLE)
_KEPT: StoreFuture[None] = StoreFuture.of(lambda: None)


def _is_kept(reply: StoreFuture[Registered], worker: str) -> bool:
    """Return whether this worker registered the run, also if the call was repeated after a lost answer."""
    try:
        return reply.result().record.worker == worker
    except RunConflict:
        return False
    except Exception:
        return True  # its worker is fenced: the next call raises


def _kept(name: str, value: object, limit: int = VALUE_BYTES) -> dict[str, Any]:
    plain, omitted = _json.plain(value, limit)
    return {name: plain} if omitted is None else {name: None, "omitted": omitted}

"""Writes the logs of the runs of this process to the store: in order, and never on the time of a run.

A run reports to its sink (``LogWriter``) on whatever thread its code is, even in a signal handler. The sink notes the
report in the run's ``RunLog`` and queues a call (``CallQueue``); one thread, that for stores, makes the calls. Three
things must hold, whatever the store does:

1. **What a reader sees of one run is in the order in which it happened.** At most one call of the store is in progress
   for each run (``is_busy``); what is reported meanwhile goes into the next one. Only the thread for stores starts
   calls and handles replies, so ``is_busy`` needs no lock. A call that failed leaves its drafts in the log, and is made
   again with the next heartbeat: the store does nothing twice, because a run's epoch and the numbers of its events say
   what it has.
2. **The store knows a run before anybody stops it there, and a stop before what the stop caused.** Children are
   registered through the same queue, so a child that is found here is ahead of its stop. ``SupervisorCore.submit_stop``
   queues the stop first and tells the runs second; what they write afterwards is behind it.
3. **The end of a tree becomes visible last.** A run's end waits while ends below it are on their way
   (``unstored_below``); replies go through the queue, too, so that a parent is not finished between the reply of a
   child and its effect.

What breaks it: a call made directly while the queue has others (``is_idle`` is asked first); a reply handled on the
thread of the store; a report that is added after ``_forget``, which a closed run does not make.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stoppable import _json
from stoppable._core import clock
from stoppable._core.hooks import Callback, Moment
from stoppable._core.node import RunNode, Sink
from stoppable._core.stop import Answer, Receipt, Stop, write_receipt
from stoppable._core.values import Fate, Mode, Outcome, Reason, Status
from stoppable._engine import control
from stoppable._engine.source_lines import trace_of
from stoppable._engine.threads import pool
from stoppable.errors import RunConflict, StoreError
from stoppable.records import Draft, ErrorRecord, EventType, OutcomeRecord, StopIntent, StopRequest
from stoppable.stores.base import Registration, Settled, Store, StoreFuture, settle
from stoppable.stores.rules import status_event
from stoppable.supervisor.jobs import record_of_child
from stoppable.supervisor.meter import Meter

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary


_logger = logging.getLogger("stoppable")

VALUE_BYTES = 1_000_000
"""The largest result, partial or event that is stored."""

METADATA_BYTES = 16_384
"""The largest set of facts that one call of ``Run.annotate`` may store."""

VALUE_SECONDS = 3.0
"""How long the end of a run waits for the JSON of its result; shorter than a shutdown waits for the ends."""

_TEXT = 10_000  # characters of an error
_AT_ONCE, _SECONDS_AT_ONCE = 500, 0.004  # calls at once; then ladders and the lease have their turn
_PATIENCE = 0.02  # seconds to wait for the runs' loop, if the stop came from another loop
_COLLECTED = 0.01  # seconds for which deferrable calls wait after the last calls


class CallQueue:
    """Calls that a separate thread makes (``control.for_stores``), first come, first served.

    If there is an event loop, the loop wakes the thread after all tasks that are ready: when a stop has woken ten
    thousand bodies, all of them halt before anything is written about the first. A blocked loop delays callers on other
    loops by at most 20 ms, and its own by at most the sleep of the thread for stores.

    Waking a thread for each token of fifty models would cost more than the calls themselves, so deferrable calls are
    made together: the first at once, and then every ten milliseconds while there are more.
    """

    __slots__ = (
        "_after",
        "_calls",
        "_fallback_timer",
        "_has_deferred",
        "_is_deferring",
        "_is_flushing",
        "_is_woken",
        "_loop_asked",
    )

    def __init__(self, after: Callable[[], object]) -> None:
        """Call ``after`` when calls have been made."""
        self._after = after
        self._calls: collections.deque[Callable[[], object]] = collections.deque()
        self._is_deferring = False  # deferrable calls are made within ten milliseconds, even without request_flush()
        self._has_deferred = False  # since the last calls
        self._is_flushing = False
        self._is_woken = False
        # The loop that wakes the thread for stores after its turn.
        self._loop_asked: asyncio.AbstractEventLoop | None = None
        # When the thread for stores looks at the queue, even if nothing wakes it.
        self._fallback_timer: control.Timer | None = None

    def put(self, call: Callable[[], object]) -> None:
        """Queue a call and wake the thread for stores; from any thread."""
        self.put_silently(call)
        self.request_flush(asyncio._get_running_loop())

    def put_deferred(self, call: Callable[[], object]) -> None:
        """Queue a call that may wait up to ten milliseconds for others; from any thread."""
        self.put_silently(call)
        self._has_deferred = True
        if not self._is_deferring:  # read last: the code that resets it looks for calls afterwards
            self.request_flush(asyncio._get_running_loop())

    def put_silently(self, call: Callable[[], object]) -> None:
        """Queue a call without waking the thread for stores; ``request_flush`` does that."""
        self._calls.append(call)

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty, so that a direct call keeps the order."""
        return not (self._calls or self._is_flushing)

    def request_flush(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Wake the thread for stores: after all tasks that are ready in a loop, or at once."""
        if (
            self._is_woken or self._is_flushing or not self._calls
        ):  # the thread that makes calls looks for more when it is done
            return
        if loop is None:
            self.flush_soon()
            return
        here = asyncio._get_running_loop()
        if here is loop and self._loop_asked is loop:
            return
        if self._fallback_timer is None:
            self._fallback_timer = control.for_stores().call_at(clock.now() + control.TICK_SECONDS, self._flush)
        self._loop_asked = loop
        if here is loop:
            loop.call_soon(self.flush_soon)
            return
        with contextlib.suppress(RuntimeError):  # it was closed
            loop.call_soon_threadsafe(loop.call_soon, self.flush_soon)
        if here is not None:
            here.call_later(_PATIENCE, self.flush_soon)

    def flush_soon(self) -> None:
        """Wake the thread for stores now; safe in a signal handler."""
        self._loop_asked = None  # even without calls: the loop must be asked again for the next wake-up
        if self._calls and not (self._is_woken or self._is_flushing):
            self._is_woken = True
            control.for_stores().call_at(clock.now(), self._flush)

    def _flush(self) -> None:
        fallback_timer, self._fallback_timer = self._fallback_timer, None
        self._loop_asked, self._is_woken = None, False  # first, so that later calls wake it again
        self._has_deferred = False
        if fallback_timer is not None:
            fallback_timer.cancel()
        count, until = 0, clock.now() + _SECONDS_AT_ONCE
        self._is_flushing = True  # before the last call is removed
        while self._calls and count < _AT_ONCE and clock.now() <= until:
            count += 1
            try:
                self._calls.popleft()()
            except BaseException:  # go on with the others
                _logger.exception("a call to the store failed")
        self._is_flushing = False
        self._after()
        self.flush_soon()  # if there are more
        if count and not self._is_deferring and not control.for_stores().is_driven:
            self._is_deferring = True
            control.for_stores().call_at(clock.now() + _COLLECTED, self._flush_deferred)

    def _flush_deferred(self, *, is_patient: bool = True) -> None:
        if is_patient and self._loop_asked is not None:  # a loop is about to wake the thread for stores after its turn
            control.for_stores().call_at(clock.now() + _COLLECTED, partial(self._flush_deferred, is_patient=False))
            return
        self._is_deferring = False  # first, so that later calls wake it
        if self._has_deferred:
            self._flush()


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
        "is_deferred",
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
        "unstored_below",
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
        self.is_deferred: bool = False  # a call is queued that stores everything noted until then
        self.is_failing: bool = False  # the store refused the last call
        self.is_held_up: bool = False  # no calls until the next heartbeat
        self.is_over: bool = False
        self.above: RunLog | None = None  # the log of its parent, once the run has ended
        self.unstored_below: int = 0  # children that have ended, but whose ends are not stored
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

    def knows(self, mode: Mode) -> bool:
        """Return whether the store has this stop of the run, or a harder one."""
        return self.known_mode is not None and self.known_mode >= mode


class LogWriter(Sink):
    """The sink of every run of a supervisor."""

    __slots__ = (
        "_is_closed",
        "_lock",
        "_lost",
        "_offset",
        "_store",
        "_stored_ends",
        "_worker",
        "calls",
        "dropped",
        "logs",
        "meter",
    )

    def __init__(self, store: Store, worker: Callable[[], str]) -> None:
        self._store = store
        self._worker = worker
        self._lock = threading.Lock()
        self._offset = math.inf
        self._is_closed = False
        self._stored_ends: list[Settled] = []  # callers whose ends are stored now
        self._lost: dict[RunNode, StoreFuture[None]] = {}  # runs that may be alive, and whether the store knows that
        self.logs: dict[str, RunLog] = {}
        self.dropped: int = 0  # events that were dropped and reported as such
        self.meter: Meter | None = None
        self.calls: CallQueue = CallQueue(self._settle_stored)

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
                log.hook = Callback(run, Moment.STOP, lambda: self._wake_advance(log))
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
            self._queue_advance(log)
        else:
            self._note(run, status_event(Status.RUNNING))

    def stopping(self, stop: Stop) -> None:
        """Record a stop that is not in the store; may be called in a signal handler."""
        log = self._log_of(stop.target)
        if log is not None and not log.knows(stop.mode):
            self._wake_advance(log)

    def ended(self, run: RunNode) -> None:
        """Record the outcome."""
        log = self._log_of(run)
        if log is not None:
            if run.status is Status.LOST:
                self._lost[run] = self.when_stored(log)
            self.calls.put(partial(self._end, log))

    def died(self, run: RunNode) -> None:
        """Record that a run has ended which is ``lost`` in the store: a late report, which is an event (G2)."""

        def on_stored(reply: StoreFuture[None]) -> None:
            with contextlib.suppress(StoreError):  # it was closed
                reply.result()
                self._store.finish(run.id, 0, OutcomeRecord(status=Status.STOPPED), None)

        end_reply = self._lost.pop(run, None)
        if end_reply is not None:
            end_reply.then(on_stored)

    def _end(self, log: RunLog) -> None:
        if log.finished is _STORED:
            return
        log.is_over = True  # in its turn: the runs below it ended first
        if log.run.first_stop is not None:
            log.receipt = on_store_clock(write_receipt(log.run, Answer.ACCEPTED), log.offset)
            if self.meter is not None and all(stop.target is log.run for stop in log.run.stops()):
                self.meter.entered_late(len(log.receipt.entered_after))  # with those of the runs below it
        if log.run.status is Status.LOST and log.receipt is not None:
            survivors = [node.name for node in log.receipt.entries if node.kind != "run" and node.fate in _LEFT]
            names = ", ".join([*survivors[:_NAMES_LOGGED], *(["…"] if len(survivors) > _NAMES_LOGGED else [])])
            _logger.warning("run %s (%s) is lost, still alive: %s", log.run.id, log.run.name, names)
        parent = log.run.parent
        log.above = None if parent is None else self._log_of(parent)
        if log.above is not None:
            log.above.unstored_below += 1
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
        self._add_deferred(run, Draft(type=EventType.PARTIAL, data=_encode_value(name, value), at=self._store.now()))

    def annotated(self, run: RunNode, metadata: dict[str, object]) -> None:
        """Record facts about a run."""
        data = _encode_value("metadata", metadata, METADATA_BYTES)
        self._note(run, Draft(type=EventType.ANNOTATED, data=data, at=self._store.now()))

    def event(self, run: RunNode, kind: str, data: dict[str, object]) -> None:
        """Note progress."""
        progress = {"name": str(kind), **_encode_value("data", data)}
        self._add_deferred(run, Draft(type=EventType.PROGRESS, data=progress, at=self._store.now()))

    def acknowledge(self, log: RunLog, mode: Mode) -> bool:
        """Queue the acknowledgement of a stop, with what is in flight; the caller wakes the thread for stores.

        False if there is nothing to acknowledge any more.
        """
        if self._log_of(log.run) is not log or (log.acknowledging is not None and log.acknowledging >= mode):
            return False
        log.acknowledging = mode
        self.calls.put_silently(partial(self._when_closed, log, mode))
        return True

    def _when_closed(self, log: RunLog, mode: Mode) -> None:
        run = log.run
        if run.outcome is not None:
            return  # the record of its end includes it

        def on_closed() -> None:
            log.acknowledged = (mode, on_store_clock(write_receipt(run, Answer.ACCEPTED), log.offset))
            self._queue_advance(log)

        stops = run.stops()
        if stops:
            stops[-1].when_acknowledged(on_closed)

    def _log_of(self, run: RunNode) -> RunLog | None:
        """Return the log of this very run, not that of another run with the same id."""
        log = self.logs.get(run.id)
        return log if log is not None and log.run is run else None

    def _note(self, run: RunNode, draft: Draft) -> None:
        log = self._log_of(run)
        if log is not None:
            self._add(log, draft)

    def _add_deferred(self, run: RunNode, draft: Draft) -> None:
        """Record a frequent event, such as a token of a model, which may be stored a little later."""
        log = self._log_of(run)
        if log is None:
            return
        self._append_draft(log, draft)
        if not (log.is_busy or log.is_deferred):
            log.is_deferred = True
            self.calls.put_deferred(partial(self._advance, log))

    def _add(self, log: RunLog, draft: Draft) -> None:
        self._append_draft(log, draft)
        if not log.is_busy:
            self._queue_advance(log)

    def _append_draft(self, log: RunLog, draft: Draft) -> None:
        if len(log.drafts) < _DRAFTS_KEPT:
            log.drafts.append(draft)
        else:
            log.dropped += 1

    def _queue_advance(self, log: RunLog) -> None:
        self.calls.put(partial(self._advance, log))

    def _wake_advance(self, log: RunLog) -> None:
        # Not through the loop: this may be a signal handler that interrupted its wait.
        self.calls.put_silently(partial(self._advance, log))
        self.calls.flush_soon()

    def _unsent_stop(self, log: RunLog) -> tuple[StopIntent, float] | None:
        """Return the stop of a run that is not in the store, and when it was requested.

        Stops of a stored ancestor are in the store already.
        """
        run = log.run
        is_top = run.parent is None or run.parent.sink is not self
        stops = [stop for stop in run.stops() if stop.target is run or is_top]
        if not stops:
            return None
        strongest = max(stops, key=lambda stop: stop.mode.rank)
        if log.knows(strongest.mode):
            return None
        reason = reason_on_store_clock(stops[0].reason, log.offset)
        asked_at = stops[0].requested_at + log.offset
        return StopIntent(mode=strongest.mode, reason=reason, grace=strongest.grace), asked_at

    # Writing

    def retry(self) -> None:
        """Retry the calls that the store last refused."""
        for log in list(self.logs.values()):
            if not log.is_busy:
                log.is_held_up = False
                self._queue_advance(log)

    def _advance(self, log: RunLog) -> None:
        """Make the next call for a run, on the thread for stores; if one is in progress, its reply makes the next."""
        run = log.run
        log.is_deferred = False  # first, so that later reports are stored after this
        if log.is_busy or log.is_held_up or log.finished is _STORED:
            return
        if not log.is_registered:
            self._register(log)
        elif run.first_stop is not None and (unsent := self._unsent_stop(log)) is not None:
            self._send_stop(log, *unsent)
        elif log.is_over:
            if not log.unstored_below:  # the end of a run becomes visible after the ends below it
                self._finish(log)
        elif log.acknowledged is not None:
            self._acknowledge(log)
        elif log.drafts:
            self._append(log)

    def _register(self, log: RunLog) -> None:
        log.worker = self._worker()
        reply = self._store.register(record_of_child(log.run, log.worker), log.run.id)

        def on_registered() -> None:
            log.is_registered = True
            if not _was_registered(reply, log.worker):
                _logger.warning("run %s was not stored: another run has its id", log.run.id)
                self._forget(log)

        self._when_done(log, reply, on_registered)

    def _send_stop(self, log: RunLog, intent: StopIntent, asked_at: float) -> None:
        def on_stored() -> None:
            if not log.knows(intent.mode):
                log.known_mode = intent.mode
            self.acknowledge(log, intent.mode)

        request = StopRequest(target=log.run.id, intent=intent, asked_at=asked_at)
        self._when_done(log, self._store.request_stop(request), on_stored)

    def _acknowledge(self, log: RunLog) -> None:
        acknowledgement = log.acknowledged
        assert acknowledgement is not None, "the gate is closed"

        def on_stored() -> None:
            if log.acknowledged is acknowledgement:
                log.acknowledged = None

        self._when_done(log, self._store.acknowledge(log.run.id, log.epoch, *acknowledgement), on_stored)

    def _append(self, log: RunLog) -> None:
        count = len(log.drafts)

        def on_appended() -> None:
            del log.drafts[:count]
            self._report_dropped(log)  # what was dropped is later than all that was kept

        self._when_done(log, self._store.append(log.run.id, log.epoch, log.drafts[:count]), on_appended)

    def _report_dropped(self, log: RunLog) -> None:
        if log.dropped:
            self.dropped += log.dropped
            dropped = {"message": f"{log.dropped} events were dropped while the store did not answer"}
            log.drafts.append(Draft(type=EventType.LOG, data=dropped))
            log.dropped = 0  # reported once, however often the call is repeated

    def _finish(self, log: RunLog) -> None:
        run, offset = log.run, log.offset
        outcome = run.outcome
        assert outcome is not None, "it has ended"
        if log.outcome is None:
            log.outcome = record_at_once(outcome, offset)
        if log.outcome is None:
            log.is_busy = True
            record_elsewhere(outcome, offset, partial(self._on_written, log))
            return
        self._report_dropped(log)
        reply = self._store.finish(run.id, log.epoch, log.outcome, log.receipt, list(log.drafts))
        self._when_done(log, reply, partial(self._forget, log))

    def _on_written(self, log: RunLog, outcome: OutcomeRecord) -> None:
        log.outcome, log.is_busy = outcome, False
        self._queue_advance(log)

    def _forget(self, log: RunLog) -> None:
        """Discard the log of a run once everything is stored."""
        run = log.run
        if self.logs.get(run.id) is log:
            del self.logs[run.id]
        if log.hook is not None:
            run.withdraw(log.hook)
        with self._lock:
            waiting, log.finished = log.finished, _STORED
        if waiting is not None:
            self._stored_ends.append((waiting, None, None))
        if log.above is not None:
            log.above.unstored_below -= 1
            self._advance(log.above)

    def _when_done(self, log: RunLog, reply: StoreFuture[Any], done: Callable[[], None]) -> None:
        log.is_busy = True
        # Replies are queued too, so that the end of a run is reported after the ends below it went to the store.
        reply.then(lambda reply: self.calls.put(partial(self._on_reply, log, done, reply)))

    def _on_reply(self, log: RunLog, done: Callable[[], None], reply: StoreFuture[Any]) -> None:
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

    def _settle_stored(self) -> None:
        if self._stored_ends:
            stored_ends, self._stored_ends = self._stored_ends, []
            settle(stored_ends)

    def when_stored(self, log: RunLog) -> StoreFuture[None]:
        """Return a reply that is settled when the end of a run is in the store."""
        with self._lock:
            if log.finished is None:
                if self._is_closed:
                    return StoreFuture.failed(_not_stored(log))
                log.finished = StoreFuture()
            return log.finished

    def close(self) -> None:
        """Settle waiting replies with an error: the end will not be stored."""
        with self._lock:
            self._is_closed = True
            waiting: list[Settled] = []
            for log in list(self.logs.values()):
                if log.finished is not None and log.finished is not _STORED:
                    waiting.append((log.finished, None, _not_stored(log)))
                    log.finished = None
        settle(waiting)


def _not_stored(log: RunLog) -> StoreError:
    return StoreError(f"run {log.run.id}: its end was not stored: the supervisor was closed")


_LEFT = (Fate.ABANDONED, Fate.UNREACHABLE)
_STORED: StoreFuture[None] = StoreFuture.of(lambda: None)


def _was_registered(reply: StoreFuture[Registration], worker: str) -> bool:
    """Return whether this worker registered the run, also if the call was repeated after a lost answer."""
    try:
        return reply.result().record.worker == worker
    except RunConflict:
        return False
    except Exception:
        return True  # its worker is fenced: the next call raises


def _encode_value(name: str, value: object, limit: int = VALUE_BYTES) -> dict[str, Any]:
    plain, omitted = _json.plain(value, limit)
    return {name: plain} if omitted is None else {name: None, "omitted": omitted}


# What the store has of times, outcomes and errors.


def on_store_clock(receipt: Receipt, seconds: float) -> Receipt:
    """Return a receipt with its times on another clock."""

    def shift(at: float | None) -> float | None:
        return None if at is None else at + seconds

    return replace(
        receipt,
        reason=None if receipt.reason is None else reason_on_store_clock(receipt.reason, seconds),
        requested_at=shift(receipt.requested_at),
        acknowledged_at=shift(receipt.acknowledged_at),
        delivered_at=shift(receipt.delivered_at),
        ended_at=shift(receipt.ended_at),
    )


def as_of_stop(receipt: Receipt) -> Receipt:
    """Return a receipt as it was when the gates closed: a stop answers what it changed, not what came later."""
    return replace(receipt, status=Status.STOPPING, too_late=False, ended_at=None)


def reason_on_store_clock(reason: Reason, seconds: float) -> Reason:
    """Return a reason with its time on another clock."""
    return replace(reason, at=reason.at + seconds)


def record_at_once(outcome: Outcome[Any], seconds: float) -> OutcomeRecord | None:
    """Return the stored form of an outcome, or None if that needs code of the agent, which may be slow."""
    if outcome.error is None and _json.is_plain(outcome.result) and _json.is_plain(outcome.partial):
        return record_of_outcome(outcome, seconds)
    return None


def record_elsewhere(outcome: Outcome[Any], seconds: float, callback: Callable[[OutcomeRecord], object]) -> None:
    """Make the stored form on a separate thread, without values that take too long; ``callback`` is called once."""
    waiting = [callback]

    def make(*, is_late: bool) -> None:
        record = record_of_outcome(outcome, seconds, is_late=is_late)
        timer.cancel()
        try:
            call = waiting.pop()
        except IndexError:
            return  # the other call was faster
        call(record)

    timer = control.for_stores().call_at(clock.now() + VALUE_SECONDS, partial(make, is_late=True))
    pool.submit(partial(make, is_late=False))


def record_of_outcome(outcome: Outcome[Any], seconds: float, *, is_late: bool = False) -> OutcomeRecord:
    """Return the stored form of an outcome; nothing that an agent returns or raises can make this fail.

    With ``is_late`` it calls no code of the agent.
    """
    late = f"it was not serialized within {VALUE_SECONDS} seconds"
    omitted: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name in ("result", "partial"):
        value = getattr(outcome, name)
        values[name], why = (None, late) if is_late and not _json.is_plain(value) else _json.plain(value, VALUE_BYTES)
        if why is not None:
            omitted[name] = why
    error = None
    if outcome.error is not None:
        late_error = ErrorRecord(type=_json.name_of(outcome.error), message=late)
        error = late_error if is_late else record_of_error(outcome.error)
    return OutcomeRecord(
        status=outcome.status,
        reason=None if outcome.reason is None else reason_on_store_clock(outcome.reason, seconds),
        rung=outcome.rung,
        clean=outcome.clean,
        error=error,
        omitted=omitted,
        **values,
    )


def record_of_error(error: BaseException) -> ErrorRecord:
    """Return an error as text, even if its ``__str__`` raises."""
    try:
        message = _text(str(error))
    except BaseException as broken:
        message = f"its __str__ raised {_json.name_of(broken)}"
    try:
        trace = _text(trace_of(error))
    except BaseException:
        trace = ""
    return ErrorRecord(type=_text(_json.name_of(error)), message=message[:_TEXT], trace=trace[-_TEXT:])


def _text(value: str) -> str:
    return str.encode(value, errors="replace").decode()  # a lone surrogate cannot be encoded as UTF-8

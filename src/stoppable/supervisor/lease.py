"""The lease of this process: the thread for stores renews it, and kills the runs before it expires."""

from __future__ import annotations

import collections
import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

from stoppable._core import clock
from stoppable._core.values import Status, new_id
from stoppable._engine import control
from stoppable._engine.processes.table import boot_clock, end_processes_of
from stoppable.errors import Fenced, StoreError
from stoppable.records import RunRecord
from stoppable.stores.base import Intent, Store, StoreFuture, Subscription, WorkerInfo

_logger = logging.getLogger("stoppable")

_BEATS = 3  # heartbeats in the life of a lease
_FENCED_AFTER = 0.75  # of the life of a lease without an answer; the rest is for the kill, which takes two seconds
_OVERDUE_AFTER = 0.5  # of the life of a lease: the next heartbeat should have been answered by then
_REAPED_AT_ONCE = 100
_OPEN_SECONDS = 30.0
_CLOSE_SECONDS = 5.0  # without an answer the lease expires


_FormerWorker = tuple[str, Callable[[], bool]]
"""A former worker id of this process, and a predicate that says whether its runs have ended."""


class Lease:
    """Shows that this process is alive, reads pending stops, and ends the runs of dead workers.

    ``deliver`` gets the stops that are not yet acknowledged. ``on_fenced`` is called when this process has lost its
    lease, and returns a predicate that says whether its runs have ended. ``on_heartbeat`` is called after every
    answered heartbeat. All are called on any thread.
    """

    def __init__(
        self,
        store: Store,
        ttl: float,
        *,
        deliver: Callable[[Sequence[Intent]], object],
        on_fenced: Callable[[], Callable[[], bool]],
        on_heartbeat: Callable[[], object],
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._deliver = deliver
        self._on_fenced = on_fenced
        self._on_heartbeat = on_heartbeat
        self._timer: control.Timer | None = None
        self._hints: Subscription | None = None
        self._is_beating = False
        self._look_lock = threading.Lock()
        self._is_looking = False
        self._is_hinted = False
        self._is_closed = False
        self._is_taken = False
        self._is_taking = False
        self._former_workers: collections.deque[_FormerWorker] = collections.deque()  # while their runs may be alive
        self.worker: str = ""
        self._answered_at: float | None = None  # unlike _renewed_at, not when a new lease is asked for
        self.times_lost: int = 0

    @property
    def age(self) -> float | None:
        """Seconds since the last heartbeat that was answered was sent; None before the first."""
        return None if self._answered_at is None else boot_clock() - self._answered_at

    @property
    def ttl(self) -> float:
        """Seconds that the lease lasts without a heartbeat."""
        return self._ttl

    @property
    def is_open(self) -> bool:
        """Whether the lease was taken and not released."""
        return bool(self.worker) and not self._is_closed

    @property
    def is_current(self) -> bool:
        """Whether the last heartbeat was answered, so the store can be written."""
        return self._is_taken and boot_clock() - self._renewed_at < self._ttl * _OVERDUE_AFTER

    def open(self) -> None:
        """Take a lease; blocks until the store has it."""
        self._take().result(_OPEN_SECONDS)
        self._beat_later()

    def _take(self) -> StoreFuture[None]:
        worker = self.worker = new_id()
        self._is_taken, self._is_taking = False, True
        self._renewed_at = self._reaping_since = boot_clock()
        info = WorkerInfo(id=worker, host=socket.gethostname(), pid=os.getpid())
        reply = self._store.open_worker(info, self._ttl)
        reply.then(lambda reply: self._on_opened(worker, reply))
        return reply

    def _on_opened(self, worker: str, reply: StoreFuture[None]) -> None:
        self._is_taking = False
        try:
            reply.result()
        except Exception as error:
            _logger.warning("the lease could not be opened: %s", error)
            return  # the next tick tries again
        hints, self._hints = self._hints, self._store.hints(worker, partial(self._on_wake, worker))
        if hints is not None:
            hints.close()
        self._renewed_at = self._answered_at = boot_clock()
        self._is_taken = True
        self.hint()
        self._reap(expired=False)  # runs of workers that are proven dead: there may be no other supervisor

    def close(self, *, give_back: bool = True) -> bool:
        """Release the lease, once, or let it expire; blocks until the store answers or a timeout."""
        if self._is_closed:
            return False
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._hints is not None:
            self._hints.close()
        self._release_former()
        if not give_back:
            return True
        try:
            self._store.close_worker(self.worker).result(_CLOSE_SECONDS)
        except StoreError as error:
            _logger.warning("the lease could not be given back: %s", error)
        return True

    def _on_wake(self, worker: str, intents: Sequence[Intent] | None) -> None:
        """Deliver the stops that the store has sent with a wake-up, or read them."""
        if intents is None or worker != self.worker:
            self.hint()
        elif not self._is_closed:
            self._deliver(intents)

    def hint(self) -> None:
        """Read pending stops now; if a read is in progress, read once more after it."""
        with self._look_lock:
            if self._is_looking or self._is_closed or not self._is_taken:
                self._is_hinted = True
                return
            self._is_looking, self._is_hinted = True, False
        self._store.intents(self.worker).then(self._on_intents)

    def _on_intents(self, reply: StoreFuture[Sequence[Intent]]) -> None:
        try:
            intents = reply.result()
            if intents and not self._is_closed:
                self._deliver(intents)
        except Exception as error:
            _logger.warning("pending stops could not be read: %s", error)  # the next heartbeat reads them
        with self._look_lock:
            self._is_looking, again = False, self._is_hinted
        if again:
            self.hint()

    def _beat_later(self) -> None:
        if not self._is_closed:
            seconds = self._ttl / _BEATS
            if self._is_taken:
                seconds = min(seconds, max(0.0, self._fenced_in()))
            self._timer = control.for_stores().call_at(clock.now() + seconds, self._tick)

    def _fenced_in(self) -> float:
        """Return the seconds after which the runs must be killed if the lease is not renewed."""
        return self._renewed_at + self._ttl * _FENCED_AFTER - boot_clock()

    def _tick(self) -> None:
        if self._is_closed:
            return
        try:
            if self._is_taken and self._fenced_in() <= 0:
                self._lose("the store has not answered in time")
            elif not self._is_taken and not self._is_taking:
                self._take()
            self._beat()
        finally:
            self._beat_later()

    def _beat(self) -> None:
        if self._is_beating or self._is_closed or not self._is_taken:
            return
        self._is_beating = True
        sent_at = boot_clock()
        self._store.heartbeat(self.worker, self._ttl).then(lambda reply: self._on_heartbeat_answer(reply, sent_at))

    def _on_heartbeat_answer(self, reply: StoreFuture[Sequence[Intent]], sent_at: float) -> None:
        self._is_beating = False
        if self._is_closed:
            return
        try:
            intents = reply.result()
        except Fenced:
            self._lose("the store has given up its runs")
            return
        except Exception as error:
            _logger.warning("the lease could not be renewed: %s", error)
            self._reaping_since = boot_clock()  # others may have had the same outage
            return
        if sent_at - self._renewed_at > self._ttl:
            self._reaping_since = sent_at  # this process itself was suspended: give the others time to renew
        self._renewed_at = self._answered_at = sent_at
        if intents:
            self._deliver(intents)
        self._on_heartbeat()
        self._release_former()
        self._reap(expired=sent_at - self._reaping_since > self._ttl)

    def _reap(self, *, expired: bool) -> None:
        def on_reaped(reply: StoreFuture[Sequence[RunRecord]]) -> None:
            try:
                records = reply.result()
            except Exception as error:
                _logger.warning("the runs of dead workers could not be ended: %s", error)
                return
            for record in records:
                _logger.warning("run %s is %s: worker %s does not answer", record.id, record.status, record.worker)
            ended_runs = {record.id for record in records if record.status is not Status.LOST}
            if ended_runs:
                control.for_stores().call_at(clock.now(), lambda: _end_processes(ended_runs))
            if len(records) >= _REAPED_AT_ONCE and not self._is_closed:
                control.for_stores().call_at(clock.now(), lambda: self._reap(expired=expired))

        self._store.reap(_REAPED_AT_ONCE, expired=expired).then(on_reaped)

    def _lose(self, why: str) -> None:
        worker = self.worker
        self.times_lost += 1
        _logger.error("worker %s is fenced: %s; its runs are killed", worker, why)
        self._take()  # first, so that new runs belong to the new lease
        self._former_workers.append((worker, self._on_fenced()))

    def _release_former(self) -> None:
        """Release the locks of former worker ids of this process whose runs have ended."""
        for _ in range(len(self._former_workers)):
            former = worker, is_over = self._former_workers.popleft()
            if is_over():
                self._store.close_worker(worker).then(partial(self._on_released, former))
            else:
                self._former_workers.append(former)

    def _on_released(self, former: _FormerWorker, reply: StoreFuture[None]) -> None:
        try:
            reply.result()
        except Exception as error:
            _logger.warning("a lease that was lost could not be given back: %s", error)
            self._former_workers.append(former)  # try again at the next heartbeat


def _end_processes(runs: Collection[str]) -> None:
    """Kill the processes of runs that ended because their worker died, including plain ones: nothing else ends them."""
    for pid in end_processes_of(runs):
        _logger.warning("process %s was killed: the worker of its run is dead", pid)

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
from stoppable._core.ids import new_id
from stoppable._core.state import Status
from stoppable._engine import control
from stoppable._engine.boot import boot_clock
from stoppable._engine.processes.orphans import end_processes_of
from stoppable.errors import Fenced, StoreError
from stoppable.records import RunRecord
from stoppable.stores.base import Intent, Store, Subscription, WorkerInfo
from stoppable.stores.future import StoreFuture

_logger = logging.getLogger("stoppable")

_BEATS = 3  # heartbeats in the life of a lease
_FENCED_AFTER = 0.75  # of the life of a lease without an answer; the rest is for the kill, which takes two seconds
_OVERDUE_AFTER = 0.5  # of the life of a lease: the next heartbeat should have been answered by then
_REAPED_AT_ONCE = 100
_OPEN_SECONDS = 30.0
_CLOSE_SECONDS = 5.0  # without an answer the lease expires


_Left = tuple[str, Callable[[], bool]]
"""A former worker id of this process, and a predicate that says whether its runs have ended."""


class Lease:
    """Shows that this process is alive, reads pending stops, and ends the runs of dead workers.

    ``deliver`` gets the stops that are not yet acknowledged. ``fenced`` is called when this process has lost its lease,
    and returns a predicate that says whether its runs have ended. ``beaten`` is called after every answered heartbeat.
    All are called on any thread.
    """

    def __init__(
        self,
        store: Store,
        ttl: float,
        *,
        deliver: Callable[[Sequence[Intent]], object],
        fenced: Callable[[], Callable[[], bool]],
        beaten: Callable[[], object],
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._deliver = deliver
        self._fenced = fenced
        self._beaten = beaten
        self._timer: control.Timer | None = None
        self._hints: Subscription | None = None
        self._is_beating = False
        self._looking = threading.Lock()
        self._is_looking = False
        self._is_hinted = False
        self._is_closed = False
        self._is_taken = False
        self._is_taking = False
        self._left: collections.deque[_Left] = collections.deque()  # former worker ids, while their runs may be alive
        self.worker: str = ""

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
        reply.then(lambda reply: self._taken(worker, reply))
        return reply

    def _taken(self, worker: str, reply: StoreFuture[None]) -> None:
        self._is_taking = False
        try:
            reply.result()
        except Exception as error:
            _logger.warning("the lease could not be opened: %s", error)
            return  # the next tick tries again
        hints, self._hints = self._hints, self._store.hints(worker, self.hint)
        if hints is not None:
            hints.close()
        self._renewed_at = boot_clock()
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
        self._leave()
        if not give_back:
            return True
        try:
            self._store.close_worker(self.worker).result(_CLOSE_SECONDS)
        except StoreError as error:
            _logger.warning("the lease could not be given back: %s", error)
        return True

    def hint(self) -> None:
        """Read pending stops now; if a read is in progress, read once more after it."""
        with self._looking:
            if self._is_looking or self._is_closed or not self._is_taken:
                self._is_hinted = True
                return
            self._is_looking, self._is_hinted = True, False
        self._store.intents(self.worker).then(self._looked)

    def _looked(self, reply: StoreFuture[Sequence[Intent]]) -> None:
        try:
            intents = reply.result()
            if intents and not self._is_closed:
                self._deliver(intents)
        except Exception as error:
            _logger.warning("pending stops could not be read: %s", error)  # the next heartbeat reads them
        with self._looking:
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
                self._lost("the store has not answered in time")
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
        self._store.heartbeat(self.worker, self._ttl).then(lambda reply: self._answered(reply, sent_at))

    def _answered(self, reply: StoreFuture[Sequence[Intent]], sent_at: float) -> None:
        self._is_beating = False
        if self._is_closed:
            return
        try:
            intents = reply.result()
        except Fenced:
            self._lost("the store has given up its runs")
            return
        except Exception as error:
            _logger.warning("the lease could not be renewed: %s", error)
            self._reaping_since = boot_clock()  # others may have had the same outage
            return
        if sent_at - self._renewed_at > self._ttl:
            self._reaping_since = sent_at  # this process itself was suspended: give the others time to renew
        self._renewed_at = sent_at
        if intents:
            self._deliver(intents)
        self._beaten()
        self._leave()
        self._reap(expired=sent_at - self._reaping_since > self._ttl)

    def _reap(self, *, expired: bool) -> None:
        def reaped(reply: StoreFuture[Sequence[RunRecord]]) -> None:
            try:
                records = reply.result()
            except Exception as error:
                _logger.warning("the runs of dead workers could not be ended: %s", error)
                return
            for record in records:
                _logger.warning("run %s is %s: worker %s does not answer", record.id, record.status, record.worker)
            gone = {record.id for record in records if record.status is not Status.LOST}
            if gone:
                control.for_stores().call_at(clock.now(), lambda: _end_processes(gone))
            if len(records) >= _REAPED_AT_ONCE and not self._is_closed:
                control.for_stores().call_at(clock.now(), lambda: self._reap(expired=expired))

        self._store.reap(_REAPED_AT_ONCE, expired=expired).then(reaped)

    def _lost(self, why: str) -> None:
        worker = self.worker
        _logger.error("worker %s is fenced: %s; its runs are killed", worker, why)
        self._take()  # first, so that new runs belong to the new lease
        self._left.append((worker, self._fenced()))

    def _leave(self) -> None:
        """Release the locks of former worker ids of this process whose runs have ended."""
        for _ in range(len(self._left)):
            left = worker, is_over = self._left.popleft()
            if is_over():
                self._store.close_worker(worker).then(partial(self._has_left, left))
            else:
                self._left.append(left)

    def _has_left(self, left: _Left, reply: StoreFuture[None]) -> None:
        try:
            reply.result()
        except Exception as error:
            _logger.warning("a lease that was lost could not be given back: %s", error)
            self._left.append(left)  # try again at the next heartbeat


def _end_processes(runs: Collection[str]) -> None:
    """Kill the processes of runs that ended because their worker died, including plain ones: nothing else ends them."""
    for pid in end_processes_of(runs):
        _logger.warning("process %s was killed: the worker of its run is dead", pid)

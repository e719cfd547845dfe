"""The Store protocol over a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, TypeVarTuple

from stoppable._engine.boot import boot_clock
from stoppable.errors import InvalidArgument, StoppableError, StoreError
from stoppable.records import RunRecord
from stoppable.stores.base import EVENTS_KEPT, Intent, Subscription, WorkerInfo, wall_clock
from stoppable.stores.listeners import Listeners
from stoppable.stores.reply import Reply
from stoppable.stores.sql.store import SqlStore
from stoppable.stores.sqlite import calls
from stoppable.stores.sqlite.leases import Leases
from stoppable.stores.sqlite.transaction import Transaction

if TYPE_CHECKING:
    from stoppable.stores.sqlite.engine import Engine

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SqliteStore(SqlStore):
    """Keeps runs in one file, for several processes of one machine; needs ``pip install "stoppable[sqlite]"``.

    One thread writes and one reads; calls that wait for the first share a transaction. ``synchronous="normal"`` loses
    the last calls if the machine goes down, not if a process does; ``"full"`` loses nothing that was answered.
    """

    _calls = calls

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["full", "normal"] = "full",
        clock: Callable[[], float] = wall_clock,
        lease_clock: Callable[[], float] = boot_clock,
        events_kept: int = EVENTS_KEPT,
    ) -> None:
        if synchronous not in {"full", "normal"}:
            raise InvalidArgument(f"synchronous is {synchronous!r}: use full or normal")
        self.path: Path = Path(path)
        self._synchronous = synchronous
        self._clock = clock
        self._lease_clock = lease_clock
        self._events_kept = events_kept
        self._hints = Listeners()
        self._watchers = Listeners()
        self._engine: Engine | None = None

    # Opening and closing

    def open(self) -> None:
        """Open the file, or make it."""
        if self._engine is not None:
            if self._engine.is_ours:
                return
            self._hints, self._watchers = Listeners(), Listeners()  # we are a forked child: those are of our parent
        try:
            from stoppable.stores.sqlite.engine import Engine  # noqa: PLC0415 - apsw is needed now, and not before
        except ModuleNotFoundError as error:
            raise StoreError(f'runs in a file need apsw: pip install "stoppable[sqlite]" ({error})') from error
        self._engine = Engine(
            self.path,
            synchronous=self._synchronous,
            clock=self._clock,
            lease_clock=self._lease_clock,
            events_kept=self._events_kept,
            hints=self._hints,
            watchers=self._watchers,
        )

    def close(self) -> None:
        """Finish what was asked, and close the file. A worker that did not say goodbye keeps its lock."""
        engine, self._engine = self._engine, None
        if engine is not None and engine.is_ours:
            engine.close()

    def now(self) -> float:
        """Return the time."""
        return self._clock()

    @property
    def inherited(self) -> tuple[int, ...]:
        """The descriptors that children of our workers have to be given: while one lives, its worker is not dead."""
        return () if self._engine is None else self._engine.locks.descriptors

    def _opened(self) -> Engine:
        engine = self._engine
        if engine is None:
            raise StoreError(f"{self.path} is not open: call open() first, and close() last")
        if not engine.is_ours:
            raise StoreError(f"{self.path} was opened by process {engine.pid}, before a fork: open another store")
        return engine

    def _write(self, call: Callable[..., T], *args: Any) -> Reply[T]:
        reply: Reply[T] = Reply()
        try:
            self._opened().put((call, args, reply))
        except StoppableError as error:
            return Reply.failed(error)
        return reply

    def _lease(self, call: Callable[[Leases, Transaction, *Ts], T], *args: *Ts, first: bool = False) -> Reply[T]:
        reply: Reply[T] = Reply()
        try:
            engine = self._opened()
            leases = engine.leases  # now: by the time that it is used the store may be closing
            engine.put((lambda tx: call(leases, tx, *args), (), reply), first=first)
        except StoppableError as error:
            return Reply.failed(error)
        return reply

    def _read(self, call: Callable[..., T], *args: Any) -> Reply[T]:
        try:
            return self._opened().read(call, *args)
        except StoppableError as error:
            return Reply.failed(error)

    # Workers

    def open_worker(self, info: WorkerInfo, ttl: float) -> Reply[None]:
        """Give a process a lease."""
        return self._lease(Leases.open_worker, info, ttl)

    def heartbeat(self, worker: str, ttl: float) -> Reply[Sequence[Intent]]:
        """Renew a lease, and return the pending stops."""
        # Before all that waits: a lease must not run out because this process has much to write.
        return self._lease(Leases.heartbeat, worker, ttl, first=True)

    def intents(self, worker: str) -> Reply[Sequence[Intent]]:
        """Return the pending stops."""
        try:
            return self._opened().intents(worker)
        except StoppableError as error:
            return Reply.failed(error)

    def close_worker(self, worker: str) -> Reply[None]:
        """Release a lease."""
        return self._lease(Leases.close_worker, worker)

    def hints(self, worker: str, wake: Callable[[], object]) -> Subscription:
        """Call a function when there may be a stop for a worker."""
        engine = self._opened()
        subscription = self._hints.add(worker, wake)
        engine.look()
        return subscription

    def reap(self, limit: int = 100, *, expired: bool = True) -> Reply[Sequence[RunRecord]]:
        """End the runs of workers that are gone."""
        return self._lease(Leases.reap, limit, expired)

    def watch(self, run_id: str, wake: Callable[[], object]) -> Subscription:
        """Call a function when a run may have changed."""
        engine = self._opened()
        subscription = self._watchers.add(run_id, wake)
        engine.look()
        return subscription

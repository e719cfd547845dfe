"""The Store protocol over Postgres."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stoppable.errors import StoppableError, StoreError
from stoppable.records import RunRecord
from stoppable.stores.base import EVENTS_KEPT, Intent, Subscription, WorkerInfo, wall_clock
from stoppable.stores.listeners import Listeners
from stoppable.stores.postgres import calls, leases
from stoppable.stores.postgres.machine import default_directory
from stoppable.stores.reply import Reply
from stoppable.stores.sql.store import SqlStore
from stoppable.stores.urls import without_password

if TYPE_CHECKING:
    from stoppable.stores.postgres.engine import Engine

T = TypeVar("T")


class PostgresStore(SqlStore):
    """Keeps runs in a Postgres database, for any number of replicas; needs ``pip install "stoppable[postgres]"``.

    Times and leases go by the server's clock; ``clock`` is for tests. ``locks`` is a directory of this machine in which
    each worker holds a locked file, so that others on the machine can prove its death.
    """

    _calls = calls

    def __init__(
        self,
        url: str,
        *,
        schema: str = "stoppable",
        locks: Path | None = None,
        clock: Callable[[], float] | None = None,
        events_kept: int = EVENTS_KEPT,
    ) -> None:
        self._url = url
        self._schema = schema
        self._locks = locks
        self._clock = clock
        self._events_kept = events_kept
        self._hints = Listeners()
        self._watchers = Listeners()
        self._engine: Engine | None = None
        self.name: str = without_password(url)
        """The URL without its password."""

    # Opening and closing

    def open(self) -> None:
        """Connect, and make the tables or bring them up to date."""
        if self._engine is not None:
            if self._engine.is_ours:
                return
            self._hints, self._watchers = Listeners(), Listeners()  # we are a forked child: those are of our parent
        try:
            from stoppable.stores.postgres.connection import Address  # noqa: PLC0415 - psycopg is needed now
            from stoppable.stores.postgres.engine import Engine  # noqa: PLC0415
        except ImportError as error:
            raise StoreError(f'runs in Postgres need psycopg: pip install "stoppable[postgres]" ({error})') from error
        self._engine = Engine(
            Address(url=self._url, schema=self._schema, name=self.name),
            locks=self._locks or default_directory(),
            clock=self._clock,
            events_kept=self._events_kept,
            hints=self._hints,
            watchers=self._watchers,
        )

    def close(self) -> None:
        """Finish what was asked, and disconnect. A worker that did not say goodbye keeps its lock."""
        engine, self._engine = self._engine, None
        if engine is not None and engine.is_ours:
            engine.close()

    def now(self) -> float:
        """Return the time."""
        if self._engine is None:
            return wall_clock() if self._clock is None else self._clock()
        return self._engine.now()

    @property
    def inherited(self) -> tuple[int, ...]:
        """The descriptors that children of our workers have to be given: while one lives, its worker is not dead."""
        return () if self._engine is None else self._engine.machine.locks.descriptors

    def _opened(self) -> Engine:
        engine = self._engine
        if engine is None:
            raise StoreError(f"{self.name} is not open: call open() first, and close() last")
        if not engine.is_ours:
            raise StoreError(f"{self.name} was opened by process {engine.pid}, before a fork: open another store")
        return engine

    def _write(self, call: Callable[..., T], *args: Any) -> Reply[T]:
        reply: Reply[T] = Reply()
        try:
            self._opened().put((call, args, reply))
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
        try:
            return self._write(leases.open_worker, self._opened().machine, info, ttl)
        except StoppableError as error:
            return Reply.failed(error)

    def heartbeat(self, worker: str, ttl: float) -> Reply[Sequence[Intent]]:
        """Renew a lease, and return the pending stops."""
        reply: Reply[Sequence[Intent]] = Reply()
        try:
            self._opened().beat((leases.heartbeat, (worker, ttl), reply))
        except StoppableError as error:
            return Reply.failed(error)
        return reply

    def intents(self, worker: str) -> Reply[Sequence[Intent]]:
        """Return the pending stops."""
        try:
            return self._opened().intents(worker)
        except StoppableError as error:
            return Reply.failed(error)

    def close_worker(self, worker: str) -> Reply[None]:
        """Release a lease."""
        try:
            return self._write(leases.close_worker, self._opened().machine, worker)
        except StoppableError as error:
            return Reply.failed(error)

    def hints(self, worker: str, wake: Callable[[], object]) -> Subscription:
        """Call a function when there may be a stop for a worker."""
        engine = self._opened()
        subscription = self._hints.add(worker, wake)
        engine.listener.look()
        return subscription

    def reap(self, limit: int = 100, *, expired: bool = True) -> Reply[Sequence[RunRecord]]:
        """End the runs of workers that are gone."""
        try:
            return self._write(leases.reap, self._opened().machine, limit, expired)
        except StoppableError as error:
            return Reply.failed(error)

    def watch(self, run_id: str, wake: Callable[[], object]) -> Subscription:
        """Call a function when a run may have changed."""
        engine = self._opened()
        subscription = self._watchers.add(run_id, wake)
        engine.listener.look()
        return subscription

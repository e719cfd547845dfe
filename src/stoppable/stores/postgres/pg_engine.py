"""A database while it is open: its connections, the threads that use them, and how listeners are notified."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import errors, pq

from stoppable._engine.processes.table import boot_clock
from stoppable.errors import StoreError
from stoppable.stores.base import Listeners, StoreFuture, settle
from stoppable.stores.postgres import pg_connection, pg_runs, pg_stops
from stoppable.stores.postgres.notifications import NotificationListener
from stoppable.stores.postgres.pg_connection import DatabaseAddress, ImpatientConnection, Link, explain
from stoppable.stores.postgres.pg_leases import Machine, PgLeases
from stoppable.stores.postgres.pg_transaction import PgSession, PgTransaction
from stoppable.stores.sql.sql_engine import (
    PASS_ON,
    PATIENCE_SECONDS,
    BatchThread,
    LeaseCalls,
    Read,
    SqlEngine,
    Write,
    call_all,
)
from stoppable.stores.sql.worker_locks import WorkerLocks

T = TypeVar("T")

_READERS = 3
_TRIES = 8  # of a transaction after deadlocks
_DECIDED_SECONDS = 7.0  # for a transaction whose connection was lost: left alone, the server ends it after 5

_log = logging.getLogger("stoppable")

_call_of: Callable[[Write], Callable[..., Any]] = itemgetter(0)


class PgEngine(SqlEngine):
    """What a PostgresStore has between open and close.

    One thread writes, on its own connection. Queued appends share a transaction; every other call has its own, because
    transactions with several kinds of calls would deadlock. Heartbeats have their own thread and connection, so that no
    lease expires because there is much to write.
    """

    def __init__(
        self,
        address: DatabaseAddress,
        *,
        locks: Path,
        clock: Callable[[], float] | None,
        events_kept: int,
        hints: Listeners,
        watchers: Listeners,
    ) -> None:
        super().__init__(address.name, hints, watchers)
        self._address = address
        self._clock = clock
        self._events_kept = events_kept
        self._channel = f"stoppable_{uuid.uuid4().hex}"
        with pg_connection.connect(address) as first:
            pg_connection.migrate(first, address)
            row = first.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
            assert row is not None
            self._ahead = row[0] - boot_clock()
        machine = Machine(locks)
        self.locks: WorkerLocks = machine.locks
        self.leases: LeaseCalls = PgLeases(machine)
        reading = [Link(lambda: pg_connection.connect(address)) for _ in range(_READERS)]
        self._links = [
            Link(lambda: pg_connection.connect(address, prepared=pg_stops.PREPARED)),
            Link(self._connect_to_beat),
            *reading,
        ]
        self._write_thread = BatchThread("stoppable-postgres-writer", self._work)
        self._beats: BatchThread[Write] = BatchThread("stoppable-postgres-heartbeat", self._beat)
        self._readers: list[BatchThread[Read]] = [
            BatchThread(f"stoppable-postgres-reader-{number}", partial(self._answer, link))
            for number, link in enumerate(reading)
        ]
        self._turns = itertools.cycle(self._readers)
        self.listener: NotificationListener = NotificationListener(
            self._connect_to_beat, self._transaction, self._channel, hints, watchers
        )
        self._threads: list[BatchThread[Any]] = [self._write_thread, self._beats, *self._readers]
        for thread in self._threads:
            thread.start()

    def _connect_to_beat(self) -> ImpatientConnection:
        return pg_connection.connect(self._address, pg_connection.BEAT_SECONDS)

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, and not the one that it was forked from."""
        return self.pid == os.getpid()

    def now(self) -> float:
        """Return the time of the server, as measured when the store was opened."""
        return self._clock() if self._clock is not None else boot_clock() + self._ahead

    def look(self) -> None:
        """Begin to follow what listeners were added for."""
        self.listener.look()

    def _urgent(self, write: Write) -> bool:
        return self._beats.put(write)

    def _next_reader(self) -> BatchThread[Read]:
        return next(self._turns)

    def close(self) -> None:
        """Finish what was asked, and disconnect."""
        have_ended = [thread.close(PATIENCE_SECONDS) for thread in self._threads]
        self.listener.close()
        if not all(have_ended):
            _log.warning("stoppable: %s does not answer: the last writes may be lost", self._address.name)
        for link in self._links:
            link.drop()

    # Reading

    def _answer(self, link: Link, reads: list[Read]) -> None:
        for call, args, future in reads:
            try:
                answer = self._look_up(link, call, args)
            except Exception as error:
                settle([(future, None, explain(error, self._address))])
            else:
                settle([(future, answer, None)])

    def _look_up(self, link: Link, call: Callable[..., T], args: tuple[Any, ...], *, is_first: bool = True) -> T:
        connection = link.get()
        try:
            return call(PgSession(connection), *args)
        except psycopg.OperationalError as error:
            if not is_first or isinstance(error, errors.QueryCanceled):
                raise
        finally:
            if connection.closed or connection.info.transaction_status != pq.TransactionStatus.IDLE:
                link.drop()
        return self._look_up(link, call, args, is_first=False)  # the connection was lost while it was idle

    # Writing

    def _work(self, batch: list[Write]) -> None:
        for call, some in groupby(batch, _call_of):
            writes = list(some)
            if writes[0][2] is PASS_ON:
                for read, _, _ in writes:
                    read()
            elif call is pg_runs.append:
                self._append(writes)
            else:
                for _, args, future in writes:
                    self._make(self._links[0], call, args, future)

    def _beat(self, batch: list[Write]) -> None:
        for call, args, future in batch:
            self._make(self._links[1], call, args, future)

    def _append(self, writes: list[Write]) -> None:
        try:
            answers = self._transact(self._links[0], lambda tx: pg_runs.append_all(tx, [args for _, args, _ in writes]))
        except Exception as error:
            if len(writes) == 1 or isinstance(error, StoreError):
                settle([(future, None, error) for _, _, future in writes])
            else:  # only the culprit fails
                for write in writes:
                    self._append([write])
            return
        settle(
            [
                (future, answer, None) if isinstance(answer, int) else (future, None, answer)
                for (_, _, future), answer in zip(writes, answers, strict=True)
            ]
        )

    def _make(self, link: Link, call: Callable[..., Any], args: tuple[Any, ...], future: StoreFuture[Any]) -> None:
        try:
            answer = self._transact(link, lambda tx: call(tx, *args))
        except Exception as error:
            settle([(future, None, error)])
        else:
            settle([(future, answer, None)])

    def _transaction(self, connection: psycopg.Connection[Any], *, is_repeated: bool = False) -> PgTransaction:
        return PgTransaction(
            connection,
            scope=f"stoppable {self._address.schema}",
            channel=self._channel,
            clock=self._clock,
            events_kept=self._events_kept,
            tell=self._tell,
            is_repeated=is_repeated,
        )

    def _transact(self, link: Link, call: Callable[[PgTransaction], T]) -> T:
        """Make a call in a transaction; again after a deadlock, or once after a lost connection that kept nothing."""
        for tries in range(_TRIES):
            connection = link.get()
            transaction = self._transaction(connection, is_repeated=tries > 0)
            answers: list[T] = []
            try:
                with connection.pipeline():
                    transaction.begin()
                    answers.append(call(transaction))
                    transaction.commit()
            except BaseException as error:
                if connection.closed and transaction.may_be_kept:
                    was_kept = self._was_kept(link, transaction)
                    if was_kept:
                        self._tell(transaction)
                        if answers:
                            return answers[0]
                        continue  # with its next part
                    transaction.may_be_kept = was_kept is None
                self._undo(link, connection, transaction)
                if tries < _TRIES - 1 and _is_passing(error, transaction, is_first=tries == 0):
                    continue
                if isinstance(error, Exception):
                    raise explain(error, self._address) from error
                raise
            self._tell(transaction)
            return answers[0]
        raise AssertionError("the last try returns or raises")

    def _was_kept(self, link: Link, transaction: PgTransaction) -> bool | None:
        """Return whether a transaction whose connection was lost during its commit was kept; None if unknown."""
        link.drop()
        until, between = time.monotonic() + _DECIDED_SECONDS, threading.Event()
        try:
            connection, number = link.get(), transaction.id()
            while time.monotonic() < until:
                ((status,),) = connection.execute("SELECT pg_xact_status(%s::xid8)", (number,)).fetchall()
                if status != "in progress":
                    return bool(status == "committed")
                between.wait(0.02)  # the server has not noticed yet
        except (psycopg.Error, StoreError):
            pass
        return None

    def _undo(self, link: Link, connection: psycopg.Connection[Any], transaction: PgTransaction) -> None:
        call_all(transaction.undo, self._address.name)
        try:
            if connection.broken or connection.closed:
                link.drop()
            else:
                connection.execute("ROLLBACK")
        except psycopg.Error:
            link.drop()

    def _tell(self, transaction: PgTransaction) -> None:
        """Notify the listeners of this process, after a commit."""
        hints, watchers = self._hints, self._watchers
        wakes = [lambda: hints.tell(transaction.new_stops, None), lambda: watchers.tell(transaction.touched_runs)]
        call_all([*wakes, *transaction.later], self._address.name)


def _is_passing(error: BaseException, transaction: PgTransaction, *, is_first: bool) -> bool:
    """Return whether a failed transaction can be repeated, because nothing of it was committed."""
    if isinstance(error, errors.DeadlockDetected | errors.SerializationFailure):
        return True
    return isinstance(error, psycopg.OperationalError) and not transaction.may_be_kept and is_first

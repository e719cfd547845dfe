"""A database while it is open: the connections, the threads that use them, and who is told."""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import psycopg_pool
from psycopg import errors

from stoppable._engine.boot import boot_clock
from stoppable.errors import StoreError
from stoppable.stores.base import Intent
from stoppable.stores.listeners import Listeners
from stoppable.stores.postgres import connection, events, leases
from stoppable.stores.postgres.connection import Address, ImpatientConnection, Link, explain
from stoppable.stores.postgres.listener import Listener
from stoppable.stores.postgres.machine import Machine
from stoppable.stores.postgres.transaction import Session, Transaction
from stoppable.stores.reply import Reply, Settled, settle
from stoppable.stores.sql.batch import BatchThread

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""How long a store that is being closed waits for a call that makes no progress."""

_READERS = 3
_TRIES = 8  # of a transaction that was in a deadlock with another
_READ_SECONDS = 5.0  # for a connection to read with

_log = logging.getLogger("stoppable")

Write = tuple[Callable[..., Any], tuple[Any, ...], Reply[Any]]
Read = tuple[Callable[[Session], Any], Reply[Any]]

_NOBODY: Reply[Any] = Reply()  # a read that waits for its turn
_call_of: Callable[[Write], Callable[..., Any]] = itemgetter(0)


class Engine:
    """What a PostgresStore has between open and close; belongs to one process.

    One thread writes, on a connection of its own: appends that wait for it share a transaction, and every other call
    has its own, since calls of many kinds in one transaction would wait for each other in circles. Heartbeats have a
    thread and a connection too, so that no lease runs out because there is much to write.
    """

    def __init__(
        self,
        address: Address,
        *,
        locks: Path,
        clock: Callable[[], float] | None,
        events_kept: int,
        hints: Listeners,
        watchers: Listeners,
    ) -> None:
        self.pid: int = os.getpid()
        self._address = address
        self._clock = clock
        self._events_kept = events_kept
        self._hints = hints
        self._watchers = watchers
        self._channel = f"stoppable_{uuid.uuid4().hex}"
        with connection.connect(address) as first:
            connection.migrate(first, address)
            row = first.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
            assert row is not None
            self._ahead = row[0] - boot_clock()
        self.machine: Machine = Machine(locks)
        self._pool = psycopg_pool.ConnectionPool(
            address.url,
            connection_class=ImpatientConnection,
            kwargs={"autocommit": True, **connection.OPTIONS},
            configure=lambda made: connection.configure(made, address),
            min_size=1,
            max_size=_READERS,
            num_workers=1,
            timeout=_READ_SECONDS,
            reconnect_timeout=1,
            open=True,
            name="stoppable-postgres",
        )
        self._links = [Link(lambda: connection.connect(address)), Link(self._connect_to_beat)]
        self._writer: BatchThread[Write] = BatchThread("stoppable-postgres-writer", self._work)
        self._beats: BatchThread[Write] = BatchThread("stoppable-postgres-heartbeat", self._beat)
        self._readers: list[BatchThread[Read]] = [
            BatchThread(f"stoppable-postgres-reader-{number}", self._answer) for number in range(_READERS)
        ]
        self._turns = itertools.cycle(self._readers)
        self.listener: Listener = Listener(self._connect_to_beat, self._transaction, self._channel, hints, watchers)
        self._threads: list[BatchThread[Any]] = [self._writer, self._beats, *self._readers]
        for thread in self._threads:
            thread.start()

    def _connect_to_beat(self) -> ImpatientConnection:
        return connection.connect(self._address, connection.BEAT_SECONDS)

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, and not the one that it was forked from."""
        return self.pid == os.getpid()

    def now(self) -> float:
        """Return the time of the server, as far as it is known here."""
        return self._clock() if self._clock is not None else boot_clock() + self._ahead

    def put(self, write: Write) -> None:
        """Have a change made, after those that wait."""
        if not self._writer.put(write):
            raise self._closed()

    def beat(self, write: Write) -> None:
        """Have a lease renewed, whatever waits."""
        if not self._beats.put(write):
            raise self._closed()

    def read(self, call: Callable[..., T], *args: Any) -> Reply[T]:
        """Have something looked up, after every change that was asked for before."""
        reply: Reply[T] = Reply()
        read = (lambda session: call(session, *args)), reply
        reader = next(self._turns)
        if not self._writer.put_behind((lambda: reader.put(read), (), _NOBODY)) and not reader.put(read):
            raise self._closed()
        return reply

    def intents(self, worker: str) -> Reply[Sequence[Intent]]:
        """Look up what a worker has to stop, or say what the notification that is being passed on says."""
        told = self.listener.told(worker)
        return self.read(leases.intents, worker) if told is None else Reply.of(lambda: told)

    def close(self) -> None:
        """Finish what was asked, and disconnect."""
        have_ended = [thread.close(PATIENCE_SECONDS) for thread in self._threads]
        self.listener.close()
        if not all(have_ended):
            _log.warning("stoppable: %s does not answer: the last writes may be lost", self._address.name)
        for link in self._links:
            link.drop()
        self._pool.close(PATIENCE_SECONDS)

    def _closed(self) -> StoreError:
        return StoreError(f"{self._address.name} was closed")

    # Reading

    def _answer(self, reads: list[Read]) -> None:
        for call, reply in reads:
            settle([self._looked_up(call, reply)])

    def _looked_up(self, call: Callable[[Session], Any], reply: Reply[Any]) -> Settled:
        for tries in range(_READERS + 1):  # every connection of the pool may have been lost at once
            try:
                with self._pool.connection() as found:
                    return reply, call(Session(found)), None
            except psycopg.OperationalError as error:
                if tries == _READERS or isinstance(error, psycopg_pool.PoolTimeout | errors.QueryCanceled):
                    return reply, None, explain(error, self._address)
            except Exception as error:
                return reply, None, explain(error, self._address)
        raise AssertionError("the last try returns")

    # Writing

    def _work(self, batch: list[Write]) -> None:
        for call, some in groupby(batch, _call_of):
            writes = list(some)
            if writes[0][2] is _NOBODY:
                for read, _, _ in writes:
                    read()
            elif call is events.append:
                self._append(writes)
            else:
                for _, args, reply in writes:
                    self._make(self._links[0], call, args, reply)

    def _beat(self, batch: list[Write]) -> None:
        for call, args, reply in batch:
            self._make(self._links[1], call, args, reply)

    def _append(self, writes: list[Write]) -> None:
        try:
            answers = self._transact(self._links[0], lambda tx: events.append_all(tx, [args for _, args, _ in writes]))
        except Exception as error:
            if len(writes) == 1 or isinstance(error, StoreError):
                settle([(reply, None, error) for _, _, reply in writes])
            else:  # only the culprit fails
                for write in writes:
                    self._append([write])
            return
        settle(
            [
                (reply, answer, None) if isinstance(answer, int) else (reply, None, answer)
                for (_, _, reply), answer in zip(writes, answers, strict=True)
            ]
        )

    def _make(self, link: Link, call: Callable[..., Any], args: tuple[Any, ...], reply: Reply[Any]) -> None:
        try:
            answer = self._transact(link, lambda tx: call(tx, *args))
        except Exception as error:
            settle([(reply, None, error)])
        else:
            settle([(reply, answer, None)])

    def _transaction(self, made: psycopg.Connection[Any]) -> Transaction:
        return Transaction(
            made,
            scope=f"stoppable {self._address.schema}",
            channel=self._channel,
            clock=self._clock,
            events_kept=self._events_kept,
            tell=self._tell,
        )

    def _transact(self, link: Link, call: Callable[[Transaction], T]) -> T:
        """Make a call in a transaction; again after a deadlock, and once if the connection was lost before it."""
        for tries in range(_TRIES):
            made = link.get()
            transaction = self._transaction(made)
            try:
                with made.pipeline():
                    transaction.begin()
                    answer = call(transaction)
                    transaction.commit()
            except BaseException as error:
                self._undo(link, made, transaction)
                if tries < _TRIES - 1 and _is_passing(error, transaction, is_first=tries == 0):
                    continue
                if isinstance(error, Exception):
                    raise explain(error, self._address) from error
                raise
            self._tell(transaction)
            return answer
        raise AssertionError("the last try returns or raises")

    def _undo(self, link: Link, made: psycopg.Connection[Any], transaction: Transaction) -> None:
        self._call_all(transaction.undo)
        try:
            if made.broken or made.closed:
                link.drop()
            else:
                made.execute("ROLLBACK")
        except psycopg.Error:
            link.drop()

    def _tell(self, transaction: Transaction) -> None:
        """Tell those who listen in this process, after a commit."""
        self._call_all(
            [
                lambda: self._hints.tell(transaction.woken),
                lambda: self._watchers.tell(transaction.touched),
                *transaction.later,
            ]
        )

    def _call_all(self, calls: Iterable[Callable[[], object]]) -> None:
        for call in calls:
            try:
                call()
            except Exception:  # a listener, or a file that is gone: the calls are durable all the same
                _log.exception("stoppable: %s: a listener failed", self._address.name)


def _is_passing(error: BaseException, transaction: Transaction, *, is_first: bool) -> bool:
    """Return whether a transaction that failed may be made again: nothing of it was kept."""
    if isinstance(error, errors.DeadlockDetected | errors.SerializationFailure):
        return True
    return isinstance(error, psycopg.OperationalError) and not transaction.may_be_kept and is_first

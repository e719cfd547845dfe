"""A file while it is open: two connections, the threads that use them, and who is told."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stoppable._engine.boot import boot_id
from stoppable.errors import StoreError
from stoppable.stores.base import Intent
from stoppable.stores.listeners import Listeners
from stoppable.stores.reply import Reply, Settled, settle
from stoppable.stores.sql.batch import BatchThread
from stoppable.stores.sql.locks import Locks
from stoppable.stores.sqlite import connection
from stoppable.stores.sqlite.leases import Leases, intents
from stoppable.stores.sqlite.transaction import Session, Transaction
from stoppable.stores.sqlite.wakeups import Wakeups
from stoppable.stores.sqlite.writer import Write, Writer

T = TypeVar("T")

PATIENCE_SECONDS = 10.0
"""How long a store that is being closed waits for a call that makes no progress."""

_log = logging.getLogger("stoppable")

Read = tuple[Callable[[Session], Any], Reply[Any]]


class Engine:
    """What a SqliteStore has between open and close; belongs to one process."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: str,
        clock: Callable[[], float],
        lease_clock: Callable[[], float],
        events_kept: int,
        hints: Listeners,
        watchers: Listeners,
    ) -> None:
        self.pid: int = os.getpid()
        self.is_ours: bool = True
        """Whether this process opened it, and not the one that it was forked from."""
        self._path = path = Path(os.path.realpath(path))  # as SQLite does for its own files beside it
        _close_inherited(path)
        self._hints = hints
        self._watchers = watchers
        directory = path.with_name(path.name + "-workers")
        self._turn = threading.RLock()  # held while connections change, and by the thread that hears of stops
        self.turns: list[threading.RLock] = [self._turn]
        self._connections = ExitStack()
        with self._turn, ExitStack() as undo:
            _open.add(self)
            undo.callback(_open.discard, self)
            self._writes = undo.enter_context(closing(connection.open_writer(path, synchronous)))
            self._reads = undo.enter_context(closing(connection.open_reader(path)))
            sync = None
            if synchronous == "full":
                log = connection.open_log(path)
                undo.callback(os.close, log)
                sync = partial(connection.sync, log)
            self._wakeups = Wakeups(directory, lambda worker: hints.tell([worker]))
            self._connections.push(undo.pop_all())
        self.locks: Locks = Locks(directory)
        self.leases: Leases = Leases(lease_clock, boot_id(), self.locks, self._wakeups)
        transaction = Transaction(self._writes, clock, events_kept)
        self._writer = Writer(path, self._writes, transaction, self._tell, self._listening, self._tell_all, sync)
        self._session = Session(self._reads, clock)
        self._woken: Session | None = None
        self._reader: BatchThread[Read] = BatchThread("stoppable-sqlite-reader", self._answer)
        self.turns += [self._writer.batches.turn, self._reader.turn]
        self._writer.batches.start()
        self._reader.start()

    def put(self, write: Write, *, first: bool = False) -> None:
        """Have a change made, after those that wait or before them."""
        if not self._writer.batches.put(write, first=first):
            raise self._closed()

    def read(self, call: Callable[..., T], *args: Any) -> Reply[T]:
        """Have something looked up, after every change that was asked for before."""
        reply: Reply[T] = Reply()
        read = (lambda session: call(session, *args)), reply
        if not self._writer.follow(lambda: self._reader.put(read)) and not self._reader.put(read):
            raise self._closed()
        return reply

    def intents(self, worker: str) -> Reply[Sequence[Intent]]:
        """Look up what a worker has to stop; on the thread that heard of it, without waking another."""
        if not self._wakeups.is_here:
            return self.read(intents, worker)
        with self._turn:
            if self._woken is None:
                opened = self._connections.enter_context(closing(connection.open_reader(self._path)))
                self._woken = Session(opened, self._session.now)
            return Reply.of(partial(intents, self._woken, worker))

    def look(self) -> None:
        """See now whether other processes have written, and from now on again and again while anybody listens."""
        self._writer.batches.nudge()

    def close(self) -> None:
        """Finish what was asked, and let go of the file; what waits for another process that holds it is left to it."""
        have_ended = self._writer.batches.close(PATIENCE_SECONDS), self._reader.close(PATIENCE_SECONDS)
        self._wakeups.close()
        if all(have_ended):
            self.disconnect()
        else:
            _log.warning("stoppable: %s: another process holds it: the last writes may be lost", self._path)
            self.leak()

    def disconnect(self) -> None:
        """Close the connections; nobody uses them any more."""
        with self._turn:
            self._connections.close()

    def _closed(self) -> StoreError:
        return StoreError(f"{self._path} was closed")

    def _answer(self, reads: list[Read]) -> None:
        settle([self._looked_up(call, reply) for call, reply in reads])

    def _looked_up(self, call: Callable[[Session], Any], reply: Reply[Any]) -> Settled:
        try:
            return reply, call(self._session), None
        except Exception as error:
            return reply, None, connection.explain(error, self._path)

    def _tell(self, transaction: Transaction) -> None:
        self._wakeups.wake(transaction.woken.difference(self._hints.names()))  # first: they have the longest way
        self._hints.tell(transaction.woken)
        self._watchers.tell(transaction.touched)

    def _listening(self) -> bool:
        return bool(self._hints or self._watchers)

    def _tell_all(self) -> None:
        self._hints.tell(self._hints.names())
        self._watchers.tell(self._watchers.names())

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def leak(self) -> None:
        """Keep the connections for ever: another thread uses them, or a parent process, whose file they might harm."""
        self.is_ours = False
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connections))


# Forks. SQLite knows which files and locks its process has, and a forked child believes to have those of its parent:
# over a connection of its own it would wait for a lock that nobody holds, or write to a log that its parent, which sees
# no lock of it, has removed. So it first closes those that it inherited. That harms the parent only if one was in use
# at the moment of the fork: https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_

_FORK_SECONDS = 1.0  # for all that a fork waits for

_open: set[Engine] = set()
_inherited: dict[Engine, bool] = {}  # and whether it was between two batches
_forking = threading.local()


def _before_fork() -> None:
    deadline = time.monotonic() + _FORK_SECONDS
    _forking.held = {
        engine: [turn for turn in list(engine.turns) if turn.acquire(timeout=max(0.0, deadline - time.monotonic()))]
        for engine in list(_open)
    }


def _after_fork_in_parent() -> None:
    for held in _forking.held.values():
        for turn in held:
            turn.release()
    del _forking.held


def _after_fork_in_child() -> None:
    held = _forking.held
    for engine in _open:
        engine.leak()
        _inherited[engine] = len(held.get(engine, ())) == len(engine.turns)
    _open.clear()
    _after_fork_in_parent()


def _close_inherited(path: Path) -> None:
    for engine, was_quiet in list(_inherited.items()):
        if engine.path == path:
            if not was_quiet:
                raise StoreError(
                    f"{path} was in use when this process was forked from {engine.pid}: fork before it is opened,"
                    " or start processes anew (spawn)"
                )
            del _inherited[engine]
            engine.disconnect()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

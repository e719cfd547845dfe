"""A file while it is open: its connections, the threads that use them, and how listeners are notified."""

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
from typing import Any

from stoppable._engine.boot import boot_id
from stoppable.errors import StoreError
from stoppable.stores.base import Intent
from stoppable.stores.future import Settled, StoreFuture, settle
from stoppable.stores.listeners import Listeners
from stoppable.stores.sql.batch import BatchThread
from stoppable.stores.sql.engine import PATIENCE_SECONDS, LeaseCalls, Read, SqlEngine, Write
from stoppable.stores.sql.queries import intents
from stoppable.stores.sql.worker_locks import WorkerLocks
from stoppable.stores.sqlite import connection
from stoppable.stores.sqlite.leases import Leases
from stoppable.stores.sqlite.transaction import Session, Transaction
from stoppable.stores.sqlite.wakeups import Wakeups
from stoppable.stores.sqlite.writer import Writer

_log = logging.getLogger("stoppable")


class Engine(SqlEngine):
    """What a SqliteStore has between open and close."""

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
        self._path = path = Path(os.path.realpath(path))  # as SQLite does for its own files beside it
        super().__init__(str(path), hints, watchers)
        self._is_ours = True
        _close_inherited(path)
        directory = path.with_name(path.name + "-workers")
        self._turn = threading.RLock()  # held while connections change, and by the wake-up thread
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
        self.locks: WorkerLocks = WorkerLocks(directory)
        self.leases: LeaseCalls = Leases(lease_clock, boot_id(), self.locks, self._wakeups)
        transaction = Transaction(self._writes, clock, events_kept)
        self._writer = Writer(path, self._writes, transaction, self._tell, self._listening, self._tell_all, sync)
        self._session = Session(self._reads)
        self._woken: Session | None = None
        self._write_thread = self._writer.batches
        self._read_thread: BatchThread[Read] = BatchThread("stoppable-sqlite-reader", self._answer)
        self.turns += [self._write_thread.turn, self._read_thread.turn]
        self._write_thread.start()
        self._read_thread.start()

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, and not the one that it was forked from."""
        return self._is_ours

    def _urgent(self, write: Write) -> bool:
        return self._write_thread.put(write, first=True)

    def _next_reader(self) -> BatchThread[Read]:
        return self._read_thread

    def intents(self, worker: str) -> StoreFuture[Sequence[Intent]]:
        """Return the pending stops of a worker; on the thread of the wake-up, without waking another thread."""
        if not self._wakeups.is_here:
            return self.read(intents, worker)
        with self._turn:
            if self._woken is None:
                opened = self._connections.enter_context(closing(connection.open_reader(self._path)))
                self._woken = Session(opened)
            return StoreFuture.of(partial(intents, self._woken, worker))

    def look(self) -> None:
        """Look for writes of other processes, now and every LOOK_SECONDS while there are listeners."""
        self._write_thread.nudge()

    def close(self) -> None:
        """Finish what was asked, and close the file; calls that wait for a process that holds it may be lost."""
        have_ended = self._write_thread.close(PATIENCE_SECONDS), self._read_thread.close(PATIENCE_SECONDS)
        self._wakeups.close()
        if all(have_ended):
            self.disconnect()
        else:
            _log.warning("stoppable: %s: another process holds it: the last writes may be lost", self._path)
            self.leak()

    def disconnect(self) -> None:
        """Close the connections, once no thread uses them."""
        with self._turn:
            self._connections.close()

    def _answer(self, reads: list[Read]) -> None:
        settle([self._looked_up(*read) for read in reads])

    def _looked_up(self, call: Callable[..., Any], args: tuple[Any, ...], future: StoreFuture[Any]) -> Settled:
        try:
            return future, call(self._session, *args), None
        except Exception as error:
            return future, None, connection.explain(error, self._path)

    def _tell(self, transaction: Transaction) -> None:
        self._wakeups.wake(transaction.woken.difference(self._hints.names()))  # first: other processes take longest
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
        """Never close the connections: a thread uses them, or they are a parent's, and closing would harm its file."""
        self._is_ours = False
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connections))


# Forks. SQLite remembers the files and locks of its process, and a forked child seems to have those of its parent. With
# a connection of its own, the child would wait for a lock that no process holds, or write to a log that the parent has
# removed. So it first closes the connections that it inherited. That harms the parent only if one was in use during the
# fork: https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_

_FORK_SECONDS = 1.0  # for everything that a fork waits for

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

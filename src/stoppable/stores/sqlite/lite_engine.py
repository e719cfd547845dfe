"""A file while it is open: its connections, the threads that use them, and how listeners are notified."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoppable._engine.processes.table import boot_id
from stoppable.errors import StoppableError, StoreError
from stoppable.stores.base import Listeners, Settled, StoreFuture, settle
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
from stoppable.stores.sqlite import lite_connection, lite_runs, lite_stops
from stoppable.stores.sqlite.lite_connection import explain
from stoppable.stores.sqlite.lite_leases import LiteLeases
from stoppable.stores.sqlite.lite_transaction import LiteSession, LiteTransaction
from stoppable.stores.sqlite.wakeups import Wakeups

if TYPE_CHECKING:
    import apsw


LOOK_SECONDS = 0.25
"""How often the file is checked for writes of other processes, while there are listeners."""

_log = logging.getLogger("stoppable")


class LiteWriter:
    """Makes calls in their order and answers them once they are durable.

    A call raises a StoppableError only before it has written anything. Any other error rolls all of them back, and they
    are made again one by one, so that only the culprit fails.

    With ``sync``, which makes a commit durable in place of SQLite, workers are woken for a stop before it is durable,
    and only the answer waits for the disk.
    """

    def __init__(
        self,
        path: Path,
        connection: apsw.Connection,
        transaction: LiteTransaction,
        tell: Callable[[LiteTransaction], object],
        listening: Callable[[], bool],
        others_wrote: Callable[[], object],
        sync: Callable[[], object] | None,
    ) -> None:
        """``tell`` is called after each commit, ``others_wrote`` after commits of other processes."""
        self._path = path
        self._connection = connection
        self._transaction = transaction
        self._tell = tell
        self._sync = sync
        self._is_synced_by_sqlite = True
        self._listening = listening
        self._others_wrote = others_wrote
        self._version = -1
        self._look_at = 0.0
        self.batches: BatchThread[Write] = BatchThread("stoppable-sqlite-writer", self._work, self._look)

    def _work(self, batch: list[Write]) -> None:
        writes = [write for write in batch if write[2] is not PASS_ON]
        if writes:
            self._commit(writes)
        for call, _, future in batch:
            if future is PASS_ON:
                call()
        if time.monotonic() >= self._look_at:
            self._look()

    def _commit(self, writes: list[Write]) -> None:
        sync = self._sync if _may_sync_after_wakeup(writes) else None
        try:
            self._have_synced(by_sqlite=sync is None)
            self._connection.execute("BEGIN IMMEDIATE")
        except Exception as error:
            settle([(future, None, explain(error, self._path)) for _, _, future in writes])
            return
        transaction = self._transaction
        try:
            transaction.begin()
            answers = [
                answer for call, some in groupby(writes, _call_of) for answer in _perform(call, some, transaction)
            ]
            self._connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(writes) == 1:
                settle([(writes[0][2], None, explain(error, self._path))])
            else:
                for write in writes:
                    self._commit([write])
            return
        self._after(transaction)  # first: a caller that has its answer may end before the workers are woken
        if sync is not None:
            try:
                sync()
            except OSError as error:
                unsure = StoreError(f"{self._path}: written, but it may not survive a power cut ({error})")
                answers = [(future, None, failed or unsure) for future, _, failed in answers]
        settle(answers)

    def _have_synced(self, *, by_sqlite: bool) -> None:
        if self._sync is not None and by_sqlite != self._is_synced_by_sqlite:
            self._connection.pragma("synchronous", "full" if by_sqlite else "normal")
            self._is_synced_by_sqlite = by_sqlite

    def _roll_back(self) -> None:
        self._transaction.forget_ends()
        call_all(self._transaction.undo, str(self._path))
        if self._connection.in_transaction:  # after some errors SQLite has done it
            try:
                self._connection.execute("ROLLBACK")
            except Exception:
                _log.exception("stoppable: %s: a transaction could not be rolled back", self._path)

    def _after(self, transaction: LiteTransaction) -> None:
        call_all([lambda: self._tell(transaction), *transaction.later], str(self._path))

    def _look(self) -> float | None:
        """Notify listeners if another process has written since the last look."""
        self._look_at = time.monotonic() + LOOK_SECONDS
        if not self._listening():
            return None
        try:
            version = self._connection.pragma("data_version")
        except Exception:
            _log.exception("stoppable: %s: could not check it for changes", self._path)
            return LOOK_SECONDS
        if version != self._version:
            self._version = version
            self._others_wrote()
        return LOOK_SECONDS


_call_of: Callable[[Write], Callable[..., Any]] = itemgetter(0)

_NO_ENDS = {lite_stops.request_stop, lite_runs.acknowledge, lite_runs.append}


def _may_sync_after_wakeup(writes: Iterable[Write]) -> bool:
    """Return whether calls include a stop, and none, such as an end, that must be durable before it is seen (G2)."""
    calls = set(map(_call_of, writes))
    return lite_stops.request_stop in calls and calls <= _NO_ENDS


def _perform(call: Callable[..., Any], writes: Iterable[Write], transaction: LiteTransaction) -> Iterator[Settled]:
    """Make calls of one kind; consecutive appends, which are the most frequent, are written together."""
    if call is lite_runs.append:
        some = list(writes)
        answers = lite_runs.append_all(transaction, [args for _, args, _ in some])
        for (_, _, future), answer in zip(some, answers, strict=True):
            yield (future, answer, None) if isinstance(answer, int) else (future, None, answer)
        return
    for _, args, future in writes:
        try:
            value = call(transaction, *args)
        except StoppableError as error:
            yield future, None, error
        else:
            yield future, value, None


class LiteEngine(SqlEngine):
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
        self._turn = threading.RLock()  # held while connections change
        self.turns: list[threading.RLock] = [self._turn]
        self._connections = ExitStack()
        with self._turn, ExitStack() as undo:
            _open.add(self)
            undo.callback(_open.discard, self)
            self._writes = undo.enter_context(closing(lite_connection.open_writer(path, synchronous)))
            self._reads = undo.enter_context(closing(lite_connection.open_reader(path)))
            sync = None
            if synchronous == "full":
                log = lite_connection.open_log(path)
                undo.callback(os.close, log)
                sync = partial(lite_connection.sync, log)
            self._wakeups = Wakeups(directory, lambda worker, intents: hints.tell([worker], intents))
            self._connections.push(undo.pop_all())
        self.locks: WorkerLocks = WorkerLocks(directory)
        self.leases: LeaseCalls = LiteLeases(lease_clock, boot_id(), self.locks, self._wakeups)
        transaction = LiteTransaction(self._writes, clock, events_kept)
        self._writer = LiteWriter(path, self._writes, transaction, self._tell, self._listening, self._tell_all, sync)
        self._session = LiteSession(self._reads)
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
        settle([self._look_up(*read) for read in reads])

    def _look_up(self, call: Callable[..., Any], args: tuple[Any, ...], future: StoreFuture[Any]) -> Settled:
        try:
            return future, call(self._session, *args), None
        except Exception as error:
            return future, None, lite_connection.explain(error, self._path)

    def _tell(self, transaction: LiteTransaction) -> None:
        here = set(self._hints.names())
        elsewhere = {worker: stops for worker, stops in transaction.new_stops.items() if worker not in here}
        self._wakeups.wake(elsewhere)  # first: other processes take longest
        self._hints.tell(transaction.new_stops, None)
        self._watchers.tell(transaction.touched_runs)

    def _listening(self) -> bool:
        return bool(self._hints or self._watchers)

    def _tell_all(self) -> None:
        self._hints.tell(self._hints.names(), None)
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

_open: set[LiteEngine] = set()
_inherited: dict[LiteEngine, bool] = {}  # and whether it was between two batches
_forking = threading.local()


def _before_fork() -> None:
    deadline = time.monotonic() + _FORK_SECONDS
    _forking.turns = {
        engine: [turn for turn in list(engine.turns) if turn.acquire(timeout=max(0.0, deadline - time.monotonic()))]
        for engine in list(_open)
    }


def _after_fork_in_parent() -> None:
    for turns in _forking.turns.values():
        for turn in turns:
            turn.release()
    del _forking.turns


def _after_fork_in_child() -> None:
    turns_of = _forking.turns
    for engine in _open:
        engine.leak()
        _inherited[engine] = len(turns_of.get(engine, ())) == len(engine.turns)
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

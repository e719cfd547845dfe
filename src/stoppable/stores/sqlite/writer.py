"""The thread of a store that writes: one transaction for all calls that are queued."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoppable.errors import StoppableError, StoreError
from stoppable.stores.future import Settled, settle
from stoppable.stores.sql.batch import BatchThread
from stoppable.stores.sql.engine import PASS_ON, Write, call_all
from stoppable.stores.sqlite import events, runs, stops
from stoppable.stores.sqlite.connection import explain
from stoppable.stores.sqlite.transaction import Transaction

if TYPE_CHECKING:
    import apsw

LOOK_SECONDS = 0.25
"""How often the file is checked for writes of other processes, while there are listeners."""

_log = logging.getLogger("stoppable")


class Writer:
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
        transaction: Transaction,
        tell: Callable[[Transaction], object],
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
        sync = self._sync if _may_be_seen_first(writes) else None
        try:
            self._have_synced(by_sqlite=sync is None)
            self._connection.execute("BEGIN IMMEDIATE")
        except Exception as error:
            settle([(future, None, explain(error, self._path)) for _, _, future in writes])
            return
        transaction = self._transaction
        try:
            transaction.begin()
            answers = [answer for call, some in groupby(writes, _call_of) for answer in _made(call, some, transaction)]
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
        self._transaction.rolled_back()
        call_all(self._transaction.undo, str(self._path))
        if self._connection.in_transaction:  # after some errors SQLite has done it
            try:
                self._connection.execute("ROLLBACK")
            except Exception:
                _log.exception("stoppable: %s: a transaction could not be rolled back", self._path)

    def _after(self, transaction: Transaction) -> None:
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

_NO_ENDS = {stops.request_stop, runs.acknowledge, events.append}


def _may_be_seen_first(writes: Iterable[Write]) -> bool:
    """Return whether calls include a stop, and none, such as an end, that must be durable before it is seen (G2)."""
    calls = set(map(_call_of, writes))
    return stops.request_stop in calls and calls <= _NO_ENDS


def _made(call: Callable[..., Any], writes: Iterable[Write], transaction: Transaction) -> Iterator[Settled]:
    """Make calls of one kind; consecutive appends, which are the most frequent, are written together."""
    if call is events.append:
        some = list(writes)
        answers = events.append_all(transaction, [args for _, args, _ in some])
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

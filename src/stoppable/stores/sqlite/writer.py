"""The one thread of a store that writes: whatever calls wait, one transaction takes them all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoppable.errors import StoppableError, StoreError
from stoppable.stores.reply import Reply, Settled, settle
from stoppable.stores.sql.batch import BatchThread
from stoppable.stores.sqlite import events, runs, stops
from stoppable.stores.sqlite.connection import explain
from stoppable.stores.sqlite.transaction import Transaction

if TYPE_CHECKING:
    import apsw

Write = tuple[Callable[..., Any], tuple[Any, ...], Reply[Any]]

LOOK_SECONDS = 0.25
"""How often we look whether another process has written, while anybody listens."""

_log = logging.getLogger("stoppable")


class Writer:
    """Makes calls in their order and answers them once they are durable.

    A call raises a StoppableError only before it has written anything. Any other error rolls all of them back, and they
    are made again one by one, so that only the culprit fails.

    With ``sync``, which makes a commit durable that SQLite has not, a stop is seen before it is durable: its worker is
    told while the disk is at work, and only the answer waits for it.
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
        """``tell`` is called after each commit, ``others_wrote`` after those of other processes, if anybody listens."""
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

    def follow(self, read: Callable[[], object]) -> bool:
        """Call a function after all the calls that wait now, or return False if none does."""
        return self.batches.put_behind((read, (), _NOBODY))

    def _work(self, batch: list[Write]) -> None:
        writes = [write for write in batch if write[2] is not _NOBODY]
        if writes:
            self._commit(writes)
        for call, _, reply in batch:
            if reply is _NOBODY:
                call()
        if time.monotonic() >= self._look_at:
            self._look()

    def _commit(self, writes: list[Write]) -> None:
        sync = self._sync if _may_be_seen_first(writes) else None
        try:
            self._have_synced(by_sqlite=sync is None)
            self._connection.execute("BEGIN IMMEDIATE")
        except Exception as error:
            settle([(reply, None, explain(error, self._path)) for _, _, reply in writes])
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
        self._after(transaction)  # first: whoever has the answer to a stop may end before the workers are told
        if sync is not None:
            try:
                sync()
            except OSError as error:
                unsure = StoreError(f"{self._path}: written, but it may not survive a power cut ({error})")
                answers = [(reply, None, failed or unsure) for reply, _, failed in answers]
        settle(answers)

    def _have_synced(self, *, by_sqlite: bool) -> None:
        if self._sync is not None and by_sqlite != self._is_synced_by_sqlite:
            self._connection.pragma("synchronous", "full" if by_sqlite else "normal")
            self._is_synced_by_sqlite = by_sqlite

    def _roll_back(self) -> None:
        self._transaction.rolled_back()
        self._call_all(self._transaction.undo)
        if self._connection.in_transaction:  # after some errors SQLite has done it
            try:
                self._connection.execute("ROLLBACK")
            except Exception:
                _log.exception("stoppable: %s: a transaction could not be rolled back", self._path)

    def _after(self, transaction: Transaction) -> None:
        self._call_all([lambda: self._tell(transaction), *transaction.later])

    def _call_all(self, calls: Iterable[Callable[[], object]]) -> None:
        for call in calls:
            try:
                call()
            except Exception:  # a listener, or a file that is gone: the calls are durable all the same
                _log.exception("stoppable: %s: a listener failed", self._path)

    def _look(self) -> float | None:
        """Tell listeners if another process has written since the last look."""
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


_NOBODY: Reply[Any] = Reply()  # a read that waits for its turn


_call_of: Callable[[Write], Callable[..., Any]] = itemgetter(0)

_NO_ENDS = {stops.request_stop, runs.acknowledge, events.append}


def _may_be_seen_first(writes: Iterable[Write]) -> bool:
    """Return whether there is a stop among calls, and none whose loss after it was seen would contradict it (G2)."""
    calls = set(map(_call_of, writes))
    return stops.request_stop in calls and calls <= _NO_ENDS


def _made(call: Callable[..., Any], writes: Iterable[Write], transaction: Transaction) -> Iterator[Settled]:
    """Make calls of one kind; most are appends, and those that follow each other are written at once."""
    if call is events.append:
        some = list(writes)
        answers = events.append_all(transaction, [args for _, args, _ in some])
        for (_, _, reply), answer in zip(some, answers, strict=True):
            yield (reply, answer, None) if isinstance(answer, int) else (reply, None, answer)
        return
    for _, args, reply in writes:
        try:
            value = call(transaction, *args)
        except StoppableError as error:
            yield reply, None, error
        else:
            yield reply, value, None

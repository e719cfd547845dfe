"""The one thread of a store that writes: whatever calls wait, one transaction takes them all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoppable.errors import StoppableError
from stoppable.stores.reply import Reply, Settled, settle
from stoppable.stores.sqlite.connection import explain
from stoppable.stores.sqlite.lane import Lane
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
    """

    def __init__(
        self,
        path: Path,
        connection: apsw.Connection,
        transaction: Transaction,
        tell: Callable[[Transaction], object],
        listening: Callable[[], bool],
        others_wrote: Callable[[], object],
    ) -> None:
        """``tell`` is called after each commit, ``others_wrote`` after those of other processes, if anybody listens."""
        self._path = path
        self._connection = connection
        self._transaction = transaction
        self._tell = tell
        self._listening = listening
        self._others_wrote = others_wrote
        self._version = -1
        self._look_at = 0.0
        self.lane: Lane[Write] = Lane("stoppable-sqlite-writer", self._work, self._look)

    def follow(self, read: Callable[[], object]) -> bool:
        """Call a function after all the calls that wait now, or return False if none does."""
        return self.lane.put_behind((read, (), _NOBODY))

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
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except Exception as error:
            settle([(reply, None, explain(error, self._path)) for _, _, reply in writes])
            return
        transaction = self._transaction
        transaction.clear()
        try:
            answers = [_made(write, transaction) for write in writes]
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
        settle(answers)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # after some errors SQLite has done it
            try:
                self._connection.execute("ROLLBACK")
            except Exception:
                _log.exception("stoppable: %s: a transaction could not be rolled back", self._path)

    def _after(self, transaction: Transaction) -> None:
        for call in (lambda: self._tell(transaction), *transaction.later):
            try:
                call()
            except Exception:  # a listener, or a file that is gone: the calls are durable all the same
                _log.exception("stoppable: %s: somebody could not be told", self._path)

    def _look(self) -> float | None:
        """Tell listeners if another process has written since the last look."""
        self._look_at = time.monotonic() + LOOK_SECONDS
        if not self._listening():
            return None
        try:
            version = self._connection.pragma("data_version")
        except Exception:
            _log.exception("stoppable: %s: could not see whether it has changed", self._path)
            return LOOK_SECONDS
        if version != self._version:
            self._version = version
            self._others_wrote()
        return LOOK_SECONDS


_NOBODY: Reply[Any] = Reply()  # a read that waits for its turn


def _made(write: Write, transaction: Transaction) -> Settled:
    call, args, reply = write
    try:
        return reply, call(transaction, *args), None
    except StoppableError as error:
        return reply, None, error

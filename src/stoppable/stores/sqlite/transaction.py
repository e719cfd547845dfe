"""The connection that a call uses, and what the call has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stoppable.stores.sql import rows
from stoppable.stores.sql.rows import Row
from stoppable.stores.sql.session import SqlSession, SqlTransaction
from stoppable.stores.sqlite.rows import RECORD, SUMMARY

if TYPE_CHECKING:
    import apsw


class Session(SqlSession):
    """A connection to the file."""

    __slots__ = ("_connection", "_execute", "_execute_many")

    record_columns = RECORD
    summary_columns = SUMMARY
    has_labels = """NOT EXISTS (
        SELECT 1 FROM json_each(?) AS wanted
        WHERE wanted.value IS NOT (SELECT value FROM json_each(labels) AS had WHERE had.key = wanted.key)
    )"""
    place = "events.rowid"

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        cursor = connection.cursor()
        self._execute = cursor.execute
        self._execute_many = cursor.executemany

    def all(self, sql: str, values: Any = ()) -> list[Row]:
        """Return every row."""
        return self._execute(sql, values).fetchall()

    def some(self, sql: str, values: Any, order: str, size: int) -> tuple[list[Row], bool]:  # noqa: ARG002 - it has one
        """Return rows until the last column has ``size`` characters, at least one, and whether these are all."""
        cursor = self._connection.execute(sql, values)
        found: list[Row] = []
        for row in cursor:
            found.append(row)
            size -= len(row[-1])
            if size <= 0:
                cursor.close(True)  # noqa: FBT003 - apsw's; one left open would hold on to an old state of the file
                return found, False
        return found, True

    def one(self, sql: str, values: Any = ()) -> Row | None:
        """Return the only row, or None."""
        found = self.all(sql, values)  # to its end: a cursor left open would hold on to an old state of the file
        return found[0] if found else None

    def records(self, run_ids: Sequence[str]) -> list[Row]:
        """Return the records of runs, ordered by their numbers."""
        wanted = "id IN (SELECT value FROM json_each(?))"
        return self.all(f"SELECT {RECORD} FROM runs WHERE {wanted} ORDER BY number", (rows.encode(run_ids),))  # noqa: S608 - our own names

    def logs(self, *, of_tree: bool) -> str:
        """Return the FROM clause of all logs; the events of a tree are few, and are found run by run."""
        way = "INDEXED BY events_by_run" if of_tree else "NOT INDEXED"
        return f"events {way} CROSS JOIN runs ON number = run"


Tail = tuple[int, int, int]
"""The end of a live run's log: the run's number, its epoch, and the number of its last event."""

_TAILS = 4096  # runs that log at the same time; others are looked up in the file


class Transaction(Session, SqlTransaction):
    """A session that writes.

    After the commit, listeners of ``touched`` runs and ``woken`` workers are notified and ``later`` is called; after a
    rollback ``undo`` is called. ``tails`` remembers where logs end, so that a run that logs often is looked up once.
    Code that changes a run in any other way than by an append calls ``touch``.
    """

    __slots__ = ("_now", "_version", "events_kept", "later", "tails", "touched", "undo", "woken")

    def __init__(self, connection: apsw.Connection, now: Callable[[], float], events_kept: int) -> None:
        super().__init__(connection)
        self._now = now
        self.events_kept: int = events_kept
        self.tails: dict[str, Tail] = {}
        self._version: int | None = None
        self._forget()

    def begin(self) -> None:
        """Forget the last transaction, and all tails if another connection has written since."""
        self._forget()
        version = self.all("PRAGMA data_version")[0][0]
        if version != self._version:
            self._version = version
            self.tails.clear()

    def _forget(self) -> None:
        self.touched: set[str] = set()
        self.woken: set[str] = set()
        self.later: list[Callable[[], object]] = []
        self.undo: list[Callable[[], object]] = []

    def rolled_back(self) -> None:
        """Forget all tails: some were never written."""
        self.tails.clear()

    def touch(self, run_id: str) -> None:
        """Record that a run has changed."""
        self.touched.add(run_id)
        self.tails.pop(run_id, None)

    def appended(self, run_id: str, tail: Tail) -> None:
        """Record that a log has grown, and where it ends now."""
        self.touched.add(run_id)
        if len(self.tails) >= _TAILS:
            self.tails.clear()
        self.tails[run_id] = tail

    def now(self) -> float:
        """Return the time of the store's clock."""
        return self._now()

    def run(self, sql: str, values: Any = ()) -> None:
        """Make a change."""
        self._execute(sql, values)

    def run_many(self, sql: str, values: list[Row]) -> None:
        """Make a change for each of many rows."""
        self._execute_many(sql, values)

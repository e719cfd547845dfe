"""The connection that a call uses, what the call has changed, and the statements that need every column of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stoppable.stores.sql import rows
from stoppable.stores.sql.queries import SqlSession, SqlTransaction
from stoppable.stores.sql.rows import Row

if TYPE_CHECKING:
    import apsw


RECORD = rows.record_columns("(SELECT coalesce(max(seq), 0) FROM events WHERE run = number)")
SUMMARY = rows.summary_columns("json_replace(receipt, '$.entries', json_array())")

INSERT = f"INSERT INTO runs ({rows.COLUMNS}) VALUES ({', '.join('?' * 25)}) RETURNING number"  # noqa: S608 - our own names
"""Takes what ``rows.values`` returns."""

UPDATE = (
    "UPDATE runs SET status = ?, epoch = ?, started_at = ?, ended_at = ?, mode = ?, grace = ?, reason = ?,"
    " stop_requested_at = ?, acknowledged = ?, outcome = ?, receipt = ?, metadata = ? WHERE number = ?"
)
"""Takes what ``rows.ending_values`` returns, and the number."""


class LiteSession(SqlSession):
    """A connection to the file."""

    __slots__ = ("_connection", "_execute", "_execute_many")

    record_columns = RECORD
    summary_columns = SUMMARY
    has_labels = """NOT EXISTS (
        SELECT 1 FROM json_each(?) AS wanted
        WHERE wanted.value IS NOT (SELECT value FROM json_each(labels) AS had WHERE had.key = wanted.key)
    )"""
    labelled = """run_labels CROSS JOIN runs
        ON number = run AND pair = (SELECT json_array(key, value) FROM json_each(?) LIMIT 1)"""
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
        page: list[Row] = []
        for row in cursor:
            page.append(row)
            size -= len(row[-1])
            if size <= 0:
                cursor.close(True)  # noqa: FBT003 - apsw's; one left open would hold on to an old state of the file
                return page, False
        return page, True

    def one(self, sql: str, values: Any = ()) -> Row | None:
        """Return the only row, or None."""
        result = self.all(sql, values)  # to its end: a cursor left open would hold on to an old state of the file
        return result[0] if result else None

    def records(self, run_ids: Sequence[str]) -> list[Row]:
        """Return the records of runs, ordered by their numbers."""
        condition = "id IN (SELECT value FROM json_each(?))"
        return self.all(f"SELECT {RECORD} FROM runs WHERE {condition} ORDER BY number", (rows.encode(run_ids),))  # noqa: S608 - our own names

    def logs(self, *, of_tree: bool) -> str:
        """Return the FROM clause of all logs; the events of a tree are few, and are found run by run."""
        way = "INDEXED BY events_by_run" if of_tree else "NOT INDEXED"
        return f"events {way} CROSS JOIN runs ON number = run"


LogEnd = tuple[int, int, int]
"""The end of a live run's log: the run's number, its epoch, and the number of its last event."""

_TAILS = 4096  # runs that log at the same time; others are looked up in the file


class LiteTransaction(LiteSession, SqlTransaction):
    """A session that writes.

    After the commit, listeners of ``touched_runs`` and workers with ``new_stops`` are notified and ``later`` is called;
    after a rollback ``undo`` is called. ``tails`` remembers where logs end, so that a run that logs often is looked up
    once. Code that changes a run in any other way than by an append calls ``touch``.
    """

    __slots__ = ("_now", "_version", "events_kept", "later", "new_stops", "tails", "touched_runs", "undo")

    def __init__(self, connection: apsw.Connection, now: Callable[[], float], events_kept: int) -> None:
        super().__init__(connection)
        self._now = now
        self.events_kept: int = events_kept
        self.tails: dict[str, LogEnd] = {}
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
        self.touched_runs: set[str] = set()
        self.new_stops: dict[str, list[Row]] = {}
        self.later: list[Callable[[], object]] = []
        self.undo: list[Callable[[], object]] = []

    def forget_ends(self) -> None:
        """Forget all tails: some were never written."""
        self.tails.clear()

    def touch(self, run_id: str) -> None:
        """Record that a run has changed."""
        self.touched_runs.add(run_id)
        self.tails.pop(run_id, None)

    def wake(self, worker: str, *stops: Row) -> None:
        """Record that a worker has pending stops, and which."""
        self.new_stops.setdefault(worker, []).extend(stops)

    def note_append(self, run_id: str, tail: LogEnd) -> None:
        """Record that a log has grown, and where it ends now."""
        self.touched_runs.add(run_id)
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

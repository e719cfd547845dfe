"""What a call sees while it is made: the file, the time, and a note of what it touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoppable.errors import RunNotFound
from stoppable.stores.sql.rows import Row

if TYPE_CHECKING:
    import apsw


class Session:
    """A connection as the calls use it."""

    __slots__ = ("_connection", "_execute", "_execute_many", "now")

    def __init__(self, connection: apsw.Connection, now: Callable[[], float]) -> None:
        self._connection = connection
        cursor = connection.cursor()
        self._execute = cursor.execute
        self._execute_many = cursor.executemany
        self.now: Callable[[], float] = now

    def all(self, sql: str, values: Any = ()) -> list[Row]:
        """Return every row."""
        return self._execute(sql, values).fetchall()

    def some(self, sql: str, values: Any, size: int) -> tuple[list[Row], bool]:
        """Return rows until their last column has so many characters, one at least, and whether those are all."""
        cursor = self._connection.execute(sql, values)
        rows: list[Row] = []
        for row in cursor:
            rows.append(row)
            size -= len(row[-1])
            if size <= 0:
                cursor.close(True)  # noqa: FBT003 - apsw's; one left open would hold on to an old state of the file
                return rows, False
        return rows, True

    def one(self, sql: str, values: Any = ()) -> Row | None:
        """Return the only row there can be."""
        rows = self._execute(
            sql, values
        ).fetchall()  # to its end: one left open would hold on to an old state of the file
        return rows[0] if rows else None

    def run(self, sql: str, values: Any = ()) -> None:
        """Make a change."""
        self._execute(sql, values)

    def number(self, run_id: str) -> int:
        """Return the number under which a run is kept."""
        row = self.one("SELECT number FROM runs WHERE id = ?", (run_id,))
        if row is None:
            raise RunNotFound(run_id)
        return int(row[0])


Tail = tuple[int, int, int]
"""Where the log of a live run ends: the run's number, its epoch, and the number of its last event."""

_TAILS = 4096  # runs that log at the same time; the ends of other logs are found in the file


class Transaction(Session):
    """A session that writes; ``touched`` runs, ``woken`` workers and ``later`` wait for its end, ``undo`` for another.

    ``tails`` is what earlier transactions of this process found out and is still so: a run that logs again and again is
    looked up once. Whoever changes a run in any other way than by an append says so with ``touch``.
    """

    __slots__ = ("_version", "events_kept", "later", "tails", "touched", "undo", "woken")

    def __init__(self, connection: apsw.Connection, now: Callable[[], float], events_kept: int) -> None:
        super().__init__(connection, now)
        self.events_kept: int = events_kept
        self.tails: dict[str, Tail] = {}
        self._version: int | None = None
        self._forget()

    def begin(self) -> None:
        """Forget what the last one touched, and all that was known if another connection has written since."""
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
        """Forget what is known: some of it did not happen."""
        self.tails.clear()

    def touch(self, run_id: str) -> None:
        """Note that a run is changed."""
        self.touched.add(run_id)
        self.tails.pop(run_id, None)

    def appended(self, run_id: str, tail: Tail) -> None:
        """Note that a log has become longer, and where it ends now."""
        self.touched.add(run_id)
        if len(self.tails) >= _TAILS:
            self.tails.clear()
        self.tails[run_id] = tail

    def run_many(self, sql: str, values: list[Row]) -> None:
        """Make a change for each of many rows."""
        self._execute_many(sql, values)

"""What a call sees while it is made: the file, the time, and a note of what it touches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoppable.errors import RunNotFound

if TYPE_CHECKING:
    import apsw

Row = tuple[Any, ...]


class Session:
    """A connection as the calls use it."""

    __slots__ = ("_execute", "now")

    def __init__(self, connection: apsw.Connection, now: Callable[[], float]) -> None:
        self._execute = connection.cursor().execute
        self.now = now

    def all(self, sql: str, values: Any = ()) -> list[Row]:
        """Return every row."""
        return self._execute(sql, values).fetchall()

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


class Transaction(Session):
    """A session that writes; ``touched`` runs, ``woken`` workers and ``later`` wait for its end."""

    __slots__ = ("events_kept", "later", "touched", "woken")

    def __init__(self, connection: apsw.Connection, now: Callable[[], float], events_kept: int) -> None:
        super().__init__(connection, now)
        self.events_kept = events_kept
        self.clear()

    def clear(self) -> None:
        """Forget what was touched."""
        self.touched: set[str] = set()
        self.woken: set[str] = set()
        self.later: list[Callable[[], object]] = []

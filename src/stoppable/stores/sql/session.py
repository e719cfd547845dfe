"""What the shared calls need of a database: statements, the few words in which databases differ, the time, and locks.

Statements that every database understands are written once, with ``?`` for each value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from stoppable.errors import RunNotFound
from stoppable.stores.sql.rows import Row


class SqlSession(ABC):
    """A connection that reads."""

    __slots__ = ()

    record_columns: ClassVar[str]
    """What ``rows.record`` needs of a row of runs."""
    summary_columns: ClassVar[str]
    """The same for a list, without reading anything that may be large; the receipt has no nodes."""
    has_labels: ClassVar[str]
    """The condition that a run has all labels of a JSON object."""
    place: ClassVar[str]
    """The column of events that orders them over all runs."""

    @abstractmethod
    def all(self, sql: str, values: Any = ()) -> list[Row]:
        """Return every row."""

    @abstractmethod
    def one(self, sql: str, values: Any = ()) -> Row | None:
        """Return the only row, or None."""

    @abstractmethod
    def some(self, sql: str, values: Any, order: str, size: int) -> tuple[list[Row], bool]:
        """Return rows, ordered by a column, until the last column ``data`` has ``size`` characters; at least one.

        Also returns whether these are all the rows.
        """

    @abstractmethod
    def records(self, run_ids: Sequence[str]) -> list[Row]:
        """Return the ``record_columns`` of runs, ordered by their numbers."""

    @abstractmethod
    def logs(self, *, of_tree: bool) -> str:
        """Return the FROM clause that joins events and their runs, for all runs or for the few of a tree."""

    def number(self, run_id: str) -> int:
        """Return the number of a run, or raise RunNotFound."""
        row = self.one("SELECT number FROM runs WHERE id = ?", (run_id,))
        if row is None:
            raise RunNotFound(run_id)
        return int(row[0])


class SqlTransaction(SqlSession):
    """A connection that writes."""

    __slots__ = ()

    @abstractmethod
    def now(self) -> float:
        """Return the time of the store's clock."""

    @abstractmethod
    def run(self, sql: str, values: Any = ()) -> None:
        """Make a change."""

    def lock(self, kind: str, name: str, *, shared: bool = False) -> None:
        """Wait for other transactions that lock the same name. Does nothing where only one transaction can write."""

    def in_order(self) -> None:
        """Make numbers visible in their order, from here to the commit. Does nothing where only one can write."""

"""Sessions of a database, and the lookups that every database understands.

Statements that every database understands are written once, with ``?`` for each value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from stoppable.errors import RunNotFound
from stoppable.records import Event, EventType, Filter, RunRecord, RunSummary, Selector, Summaries
from stoppable.stores import rules
from stoppable.stores.base import READ_BYTES, Intent, Tail
from stoppable.stores.sql import rows
from stoppable.stores.sql.rows import Row


class SqlSession(ABC):
    """A connection that reads."""

    __slots__ = ()

    record_columns: ClassVar[str]
    """What ``rows.record`` needs of a row of runs."""
    summary_columns: ClassVar[str]
    """The same for a list, without reading anything that may be large; the receipt has no entries."""
    has_labels: ClassVar[str]
    """The condition that a run has all labels of a JSON object."""
    labelled: ClassVar[str] = ""
    """The FROM clause for the runs that have the first label of a JSON object, with their number as ``run``, if there
    is an index of labels that is in the order of the runs."""
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


_SUBTREE = """
WITH RECURSIVE tree (node) AS (
    SELECT CAST(? AS BIGINT)
    UNION ALL
    SELECT number FROM runs JOIN tree ON parent = node
)
"""
_ONE = "SELECT number FROM runs WHERE id = ? AND (CAST(? AS TEXT) IS NULL OR owner = ?)"
# The runs that match, except those below another match: its stop includes them.
_TOPMOST = """
WITH RECURSIVE chosen (top) AS MATERIALIZED (SELECT number FROM runs WHERE {}),
below (node) AS (
    SELECT number FROM chosen JOIN runs ON parent = top
    UNION
    SELECT number FROM below JOIN runs ON parent = node
)
SELECT top FROM chosen WHERE top NOT IN (SELECT node FROM below) ORDER BY top
"""


def row_of(session: SqlSession, run_id: str) -> Row:
    """Return the row of a run, or raise RunNotFound."""
    row = session.one(f"SELECT {session.record_columns} FROM runs WHERE id = ?", (run_id,))  # noqa: S608 - our own names
    if row is None:
        raise RunNotFound(run_id)
    return row


def get(session: SqlSession, run_id: str) -> RunRecord:
    """Return a record."""
    return rows.record(row_of(session, run_id))


def query(session: SqlSession, wanted: Filter, cursor: str | None, limit: int) -> Summaries:
    """Return the runs that match, newest first."""
    limit = rules.page_size(limit)
    columns = (("owner", wanted.owner), ("name", wanted.agent), ("parent_id", wanted.parent_id))
    terms, values = _conditions(session, columns, wanted)
    source, number = "runs", "number"
    if (
        session.labelled and wanted.labels and wanted.owner is wanted.key is wanted.parent_id is None
    ):  # else their index
        source, number = session.labelled, "run"
        values.insert(0, rows.encode(wanted.labels))
    terms.append(f"{number} < ?")
    values.append(int(min(rules.cursor_number(cursor), 2**63 - 1)))
    if wanted.status:
        terms.append(f"status IN ({_marks(wanted.status)})")
        values += [status.value for status in wanted.status]
    if wanted.roots:
        terms.append("parent_id IS NULL")
    page = session.all(
        f"SELECT {session.summary_columns} FROM {source} WHERE {' AND '.join(terms)} ORDER BY {number} DESC LIMIT ?",  # noqa: S608
        (*values, limit + 1),
    )
    more = str(page[limit - 1][-1]) if len(page) > limit else None
    return Summaries(runs=tuple(RunSummary.of(rows.record(row)) for row in page[:limit]), cursor=more)


def select_stopped(session: SqlSession, target: str | Selector, owner: str | None) -> tuple[str, list[Any]]:
    """Return the statement for the numbers of the runs that a stop names, and its values."""
    if isinstance(target, str):
        return _ONE, [target, owner, owner]
    columns = (("owner", target.owner), ("name", target.agent), ("owner", owner))
    terms, values = _conditions(session, columns, target)
    return _TOPMOST.format(" AND ".join(("ended_at IS NULL", *terms))), values


def _conditions(
    session: SqlSession, columns: Iterable[tuple[str, str | None]], wanted: Filter | Selector
) -> tuple[list[str], list[Any]]:
    conditions: list[tuple[str, str]] = [(f"{column} = ?", value) for column, value in columns if value is not None]
    if wanted.key is not None:
        conditions.append(("key = ?", rows.encode(wanted.key)))
    if wanted.labels:
        conditions.append((session.has_labels, rows.encode(wanted.labels)))
    return [term for term, _ in conditions], [value for _, value in conditions]


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def tree(session: SqlSession, run_id: str) -> Sequence[RunSummary]:
    """Return a run and all its descendants; a parent has a lower number than its children."""
    # CROSS JOIN, because SQLite keeps its order: otherwise it reads all runs, which are in the order of their numbers.
    summaries = f"SELECT {session.summary_columns} FROM tree CROSS JOIN runs WHERE number = node ORDER BY number"  # noqa: S608
    sql = _SUBTREE + summaries
    return [RunSummary.of(rows.record(row)) for row in session.all(sql, (session.number(run_id),))]


def counts(session: SqlSession) -> Mapping[str, int]:
    """Return how many runs have each status."""
    return dict(session.all("SELECT status, count(*) FROM runs GROUP BY status"))


def intents(session: SqlSession, worker: str) -> Sequence[Intent]:
    """Return the pending stops of a worker."""
    stops = session.all(
        "SELECT id, mode, grace, reason FROM runs"
        " WHERE worker = ? AND ended_at IS NULL AND mode > acknowledged ORDER BY number",
        (worker,),
    )
    return rows.intents(stops)


def read(session: SqlSession, run_id: str, after: int, limit: int) -> Sequence[Event]:
    """Return a part of a run's log."""
    lines, _ = session.some(
        "SELECT seq, at, type, data FROM events WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?",
        (session.number(run_id), max(after, 0), max(limit, 0)),
        "seq",
        READ_BYTES,
    )
    return [rows.event(run_id, row) for row in lines]


def tail(session: SqlSession, after: int, limit: int, types: Collection[EventType], below: str | None) -> Tail:
    """Return events of many runs, in the order in which they were stored."""
    place, after = session.place, max(after, 0)
    last = session.all(f"SELECT coalesce(max({place}), 0) FROM events")[0][0]  # noqa: S608 - our own names
    terms: list[str] = [f"{place} > ? AND {place} <= ?"]
    values: list[Any] = [after, last]
    if types:
        terms.append(f"type IN ({_marks(types)})")
        values += [kind.value for kind in types]
    if below is not None:
        terms.append(f"run IN ({_SUBTREE} SELECT node FROM tree)")  # noqa: S608 - our own names
        values.append(session.number(below))
    lines, is_all = session.some(
        f"SELECT {place} AS place, id, seq, at, type, data FROM {session.logs(of_tree=below is not None)}"  # noqa: S608
        f" WHERE {' AND '.join(terms)} ORDER BY {place} LIMIT ?",
        (*values, limit + 1),
        "place",
        READ_BYTES,
    )
    events = tuple((place, rows.event(run_id, tuple(row))) for place, run_id, *row in lines[:limit])
    if is_all and len(lines) <= limit:
        return Tail(place=last, events=events)
    return Tail(place=events[-1][0] if events else after, events=events, has_more=True)


def open_boundaries(live: Iterable[Row], open_counts: Iterable[Row]) -> Mapping[str, tuple[str, ...] | None]:
    """Return the open boundaries of live runs.

    ``live`` has the id of each run, and whether its log is truncated; ``counted`` an id, the kind and name of a
    boundary, and how often it is open.
    """
    boundaries: dict[str, tuple[str, ...] | None] = {
        run_id: None if is_truncated else () for run_id, is_truncated in live
    }
    for run_id, kind, name, count in open_counts:
        before = boundaries.get(run_id)
        if before is not None:
            boundaries[run_id] = (*before, *[rules.boundary_label(kind, name)] * int(count))
    return boundaries

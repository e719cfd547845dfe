"""The logs of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoppable.errors import Fenced, RunNotFound, StoppableError
from stoppable.records import Draft, EventType
from stoppable.stores import rules
from stoppable.stores.sql import queries, rows
from stoppable.stores.sql.rows import Lines, Row
from stoppable.stores.sqlite.rows import RECORD
from stoppable.stores.sqlite.transaction import Session, Transaction

_STATE = """SELECT number, epoch, ended_at IS NULL, (SELECT coalesce(max(seq), 0) FROM events WHERE run = number)
 FROM runs WHERE id = ?"""
_INSERT = "INSERT INTO events (run, seq, at, type, data) VALUES (?, ?, ?, ?, ?)"
_TRUNCATED = Lines([Draft(type=EventType.TRUNCATED)]).rows[0]

_PARTIALS = """SELECT data FROM events WHERE run = ? AND type = 'partial' AND seq >= coalesce(
 (SELECT max(seq) FROM events WHERE run = ? AND type = 'partial' AND json_type(data, '$.delta') IS NULL), 0)
 ORDER BY seq"""

# Kinds and names are read from the data: SQLite is fast at that, and an append writes fewer columns.
_OPEN = """
SELECT id, data ->> 'kind' AS kind, data ->> 'name' AS name, sum(CASE type WHEN 'entered' THEN 1 ELSE -1 END) AS open
FROM runs JOIN events ON run = number
WHERE id IN (SELECT value FROM json_each(?)) AND ended_at IS NULL AND type IN ('entered', 'left')
GROUP BY number, kind, name HAVING open > 0 ORDER BY number, min(seq)
"""
_LIVE = """
SELECT id, EXISTS (SELECT 1 FROM events WHERE run = number AND seq > ? AND type = 'truncated')
FROM runs WHERE id IN (SELECT value FROM json_each(?)) AND ended_at IS NULL
"""

Append = tuple[str, int, Lines]
"""The arguments of an append."""


def append_all(tx: Transaction, calls: Iterable[Append]) -> list[int | StoppableError]:
    """Append to the logs of runs, and return the result or error of each call."""
    answers: list[int | StoppableError] = []
    waiting: list[Row] = []
    tails, kept, now = tx.tails, tx.events_kept, tx.now()
    for run_id, epoch, lines in calls:
        tail = tails.get(run_id)
        if tail is None or tail[1] != epoch or lines.moves or tail[2] + len(lines.rows) > kept:
            _write(tx, waiting)  # first: the next append reads the file
            waiting = []
            try:
                answers.append(append(tx, run_id, epoch, lines))
            except StoppableError as error:
                answers.append(error)
            continue
        number, _, last = tail
        for when, kind, data in lines.rows:
            last += 1
            waiting.append((number, last, now if when is None else when, kind, data))
        tx.appended(run_id, (number, epoch, last))
        answers.append(last)
    _write(tx, waiting)
    return answers


def _write(tx: Transaction, waiting: list[Row]) -> None:
    if waiting:
        tx.run_many(_INSERT, waiting)


def append(tx: Transaction, run_id: str, epoch: int, lines: Lines) -> int:
    """Append to a run's log."""
    if lines.moves:
        rules.check_statuses(lines.moves)
    row = tx.one(_STATE, (run_id,))
    if row is None:
        raise RunNotFound(run_id)
    number, known, is_live, last = row
    if known != epoch or not is_live:
        raise Fenced(run_id)
    if lines.moves:
        _move(tx, number, lines.moves)
    last = add(tx, number, last, lines)
    tx.appended(run_id, (number, epoch, last))
    return last


def _move(tx: Transaction, number: int, moves: Sequence[Draft]) -> None:
    row = tx.one(f"SELECT {RECORD} FROM runs WHERE number = ?", (number,))  # noqa: S608 - our own names
    assert row is not None, "it was there"
    before = rows.record(row)
    after = rules.moved_by(before, moves, tx.now())
    if after is not before:
        facts = rows.encode(after.metadata) if after.metadata else None
        tx.run(
            "UPDATE runs SET status = ?, started_at = ?, metadata = ? WHERE number = ?",
            (after.status, after.started_at, facts, number),
        )


def add(tx: Transaction, number: int, last: int, lines: Lines) -> int:
    """Append to the log of a run that has ``last`` events, and return its new length."""
    found = lines.rows
    if last + len(found) > tx.events_kept:
        found = _within_cap(tx, number, last, found)
    now = tx.now()
    _write(
        tx,
        [(number, seq, now if at is None else at, kind, data) for seq, (at, kind, data) in enumerate(found, last + 1)],
    )
    return last + len(found)


def _within_cap(
    tx: Transaction, number: int, last: int, lines: Sequence[tuple[float | None, EventType, str]]
) -> list[tuple[float | None, EventType, str]]:
    """Return the events that a full log still takes: a mark, then only those that are always kept."""
    kept: list[tuple[float | None, EventType, str]] = []
    is_marked = False
    if last > tx.events_kept:
        marked = "SELECT 1 FROM events WHERE run = ? AND seq > ? AND type = ? LIMIT 1"
        is_marked = tx.one(marked, (number, tx.events_kept, EventType.TRUNCATED)) is not None
    for line in lines:
        if last + len(kept) < tx.events_kept or line[1] in rules.ALWAYS_KEPT:
            kept.append(line)
        elif not is_marked:
            is_marked = True
            kept.append(_TRUNCATED)
    return kept


def in_flight(session: Session, run_ids: Sequence[str], events_kept: int) -> Mapping[str, tuple[str, ...] | None]:
    """Return the open boundaries of live runs."""
    wanted = rows.encode(list(run_ids))
    return queries.open_boundaries(session.all(_LIVE, (events_kept, wanted)), session.all(_OPEN, (wanted,)))


def last_of(row: Row) -> tuple[int, int]:
    """Return the number of a run and of its last event, of a row with the record columns."""
    return row[-1], row[-2]


def partials(session: Session, number: int) -> Iterator[Mapping[str, Any]]:
    """Yield the data of a run's partial events, from the last one that replaced the partial."""
    for (data,) in session.all(_PARTIALS, (number, number)):
        yield rows.decode(data)

"""Registers, acknowledges and ends runs, keeps their logs, and deletes those that ended long ago."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from stoppable._core.stop import Receipt
from stoppable._core.values import Mode, Status
from stoppable.errors import Fenced, RunConflict, RunNotFound, StoppableError
from stoppable.records import Draft, EventType, OutcomeRecord, RunRecord, replace_fields
from stoppable.stores import rules
from stoppable.stores.base import KEYS_KEPT, Registration
from stoppable.stores.sql import queries, rows, stop_requests
from stoppable.stores.sql.queries import row_of
from stoppable.stores.sql.rows import Append, Lines, Row
from stoppable.stores.sqlite import lite_stops
from stoppable.stores.sqlite.lite_transaction import INSERT, RECORD, UPDATE, LiteSession, LiteTransaction

_STATE = """SELECT number, epoch, ended_at IS NULL, (SELECT coalesce(max(seq), 0) FROM events WHERE run = number)
 FROM runs WHERE id = ?"""
_INSERT_EVENT = "INSERT INTO events (run, seq, at, type, data) VALUES (?, ?, ?, ?, ?)"
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


def append_all(tx: LiteTransaction, calls: Iterable[Append]) -> list[int | StoppableError]:
    """Append to the logs of runs, and return the result or error of each call."""
    answers: list[int | StoppableError] = []
    waiting: list[Row] = []
    tails, most, now = tx.tails, tx.events_kept, tx.now()
    for run_id, epoch, lines in calls:
        tail = tails.get(run_id)
        if tail is None or tail[1] != epoch or lines.moves or tail[2] + len(lines.rows) > most:
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
        tx.note_append(run_id, (number, epoch, last))
        answers.append(last)
    _write(tx, waiting)
    return answers


def _write(tx: LiteTransaction, waiting: list[Row]) -> None:
    if waiting:
        tx.run_many(_INSERT_EVENT, waiting)


def append(tx: LiteTransaction, run_id: str, epoch: int, lines: Lines) -> int:
    """Append to a run's log."""
    if lines.moves:
        rules.check_statuses(lines.moves)
    row = tx.one(_STATE, (run_id,))
    if row is None:
        raise RunNotFound(run_id)
    number, current_epoch, is_live, last = row
    if current_epoch != epoch or not is_live:
        raise Fenced(run_id)
    if lines.moves:
        _move(tx, number, lines.moves)
    last = add_lines(tx, number, last, lines)
    tx.note_append(run_id, (number, epoch, last))
    return last


def _move(tx: LiteTransaction, number: int, moves: Sequence[Draft]) -> None:
    row = tx.one(f"SELECT {RECORD} FROM runs WHERE number = ?", (number,))  # noqa: S608 - our own names
    assert row is not None, "it was there"
    before = rows.record(row)
    after = rules.apply_events(before, moves, tx.now())
    if after is not before:
        facts = rows.encode(after.metadata) if after.metadata else None
        tx.run(
            "UPDATE runs SET status = ?, started_at = ?, metadata = ? WHERE number = ?",
            (after.status, after.started_at, facts, number),
        )


def add_lines(tx: LiteTransaction, number: int, last: int, lines: Lines) -> int:
    """Append to the log of a run that has ``last`` events, and return its new length."""
    new = lines.rows
    if last + len(new) > tx.events_kept:
        new = _within_cap(tx, number, last, new)
    now = tx.now()
    _write(
        tx,
        [(number, seq, now if at is None else at, kind, data) for seq, (at, kind, data) in enumerate(new, last + 1)],
    )
    return last + len(new)


def _within_cap(
    tx: LiteTransaction, number: int, last: int, lines: Sequence[tuple[float | None, EventType, str]]
) -> list[tuple[float | None, EventType, str]]:
    """Return the events that a full log still takes: a mark, then only those that are always kept."""
    within: list[tuple[float | None, EventType, str]] = []
    is_marked = False
    if last > tx.events_kept:
        marked = "SELECT 1 FROM events WHERE run = ? AND seq > ? AND type = ? LIMIT 1"
        is_marked = tx.one(marked, (number, tx.events_kept, EventType.TRUNCATED)) is not None
    for line in lines:
        if last + len(within) < tx.events_kept or line[1] in rules.ALWAYS_KEPT:
            within.append(line)
        elif not is_marked:
            is_marked = True
            within.append(_TRUNCATED)
    return within


def in_flight(session: LiteSession, run_ids: Sequence[str], events_kept: int) -> Mapping[str, tuple[str, ...] | None]:
    """Return the open boundaries of live runs."""
    ids = rows.encode(list(run_ids))
    return queries.open_boundaries(session.all(_LIVE, (events_kept, ids)), session.all(_OPEN, (ids,)))


def last_of(row: Row) -> tuple[int, int]:
    """Return the number of a run and of its last event, of a row with the record columns."""
    return row[-1], row[-2]


def partials(session: LiteSession, number: int) -> Iterator[Mapping[str, Any]]:
    """Yield the data of a run's partial events, from the last one that replaced the partial."""
    for (data,) in session.all(_PARTIALS, (number, number)):
        yield rows.decode(data)


_BY_ID = f"SELECT {RECORD} FROM runs WHERE id = ?"  # noqa: S608 - our own names


def register(tx: LiteTransaction, record: RunRecord, request: str) -> Registration:
    """Store a new run."""
    earlier = tx.one("SELECT request, owner FROM runs WHERE id = ?", (record.id,))
    if earlier is not None:
        if earlier != (request, record.owner):
            raise RunConflict(record.id)
        return Registration(record=rows.record(row_of(tx, record.id)), created=False)
    if tx.one("SELECT 1 FROM workers WHERE id = ? AND state = 'open'", (record.worker,)) is None:
        raise Fenced(record.worker)
    above = None if record.parent_id is None else tx.one(_BY_ID, (record.parent_id,))
    parent = None if above is None else rows.record(above)
    if parent is None:
        rules.refuse_held(record, stop_requests.holds(tx))
    now = tx.now()
    record = replace_fields(record, created_at=now, root_id=record.root_id if parent is None else parent.root_id)
    has_begun = record.status is Status.RUNNING
    record = rules.start_child_record(record, parent, now) if has_begun else record
    input_ = rows.input_of(record)
    below = None if above is None else last_of(above)[0]
    number_row = tx.one(INSERT, rows.values(record, request, below, input_))
    assert number_row is not None, "it returns the number"
    number = number_row[0]
    if rows.long_input(input_):
        tx.run("INSERT INTO inputs (run, input) VALUES (?, ?)", (number, input_))
    tx.touch(record.id)
    if has_begun:
        last = add_lines(tx, number, 0, Lines([rules.status_event(record.status, record)]))
        record = replace_fields(record, last_event=last)
        if record.stop is not None and parent is not None and parent.worker != record.worker:
            tx.wake(record.worker, rows.intent_row(record.id, record.stop))
    elif (first := rules.stop_of_parent(parent, now) or lite_stops.take_waiting(tx, record, now)) is not None:
        record = end(tx, number, 0, rules.never_started_record(record, first, now))
    return Registration(record=record, created=True)


def acknowledge(tx: LiteTransaction, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> None:
    """Record that a gate is closed."""
    row = tx.one("SELECT epoch, ended_at IS NULL, number, stop_requested_at FROM runs WHERE id = ?", (run_id,))
    if row is None:
        raise RunNotFound(run_id)
    current_epoch, is_live, number, requested_at = row
    if current_epoch != epoch or not is_live:
        raise Fenced(run_id)
    tx.run(
        "UPDATE runs SET receipt = ? WHERE number = ?",
        (rows.encode(rules.with_request_time(receipt, requested_at)), number),
    )
    lite_stops.acknowledge(tx, number, mode)
    tx.touch(run_id)


def finish(
    tx: LiteTransaction, run_id: str, epoch: int, outcome: OutcomeRecord, receipt: Receipt | None, lines: Lines
) -> RunRecord:
    """Write the terminal status, if there is none."""
    row = row_of(tx, run_id)
    rules.check_end(outcome, lines.moves)
    number, last = last_of(row)
    record = rows.record(row)
    if record.over or record.epoch != epoch:
        tx.touch(run_id)
        after = rules.note_late_end(record, outcome, tx.now())
        if after is not record:
            tx.run("UPDATE runs SET ended_late = ? WHERE number = ?", (after.ended_late, number))
        lines = Lines([rules.late_event(outcome)])
        return replace_fields(after, last_event=add_lines(tx, number, last, lines))
    now = tx.now()
    record = rules.apply_events(record, lines.moves, now)
    return end(tx, number, last, rules.finish_record(record, outcome, receipt, now), lines)


def end(tx: LiteTransaction, number: int, last: int, record: RunRecord, lines: Lines | None = None) -> RunRecord:
    """Write the record of a run that has ended, and its last events."""
    assert record.outcome is not None, "how it ended"
    ends = (
        _plain_end_lines(record.status, record.outcome.clean)
        if record.stop is None
        else _end_lines(record, record.outcome)
    )
    last = add_lines(tx, number, last, ends if lines is None else lines.then(ends))
    changing, long = rows.ending_values(record, record.outcome)
    tx.run(UPDATE, (*changing, number))
    if long is not None:
        tx.run("INSERT INTO outcomes (run, outcome) VALUES (?, ?)", (number, long))
    tx.touch(record.id)
    object.__setattr__(
        record, "last_event", last
    )  # nothing else has it yet, and a copy would take longer than the rest
    return record


def _end_lines(record: RunRecord, outcome: OutcomeRecord) -> Lines:
    return Lines([rules.status_event(outcome.status, record), rules.done_event(outcome)])


@lru_cache
def _plain_end_lines(status: Status, clean: bool | None) -> Lines:  # noqa: FBT001 - a key
    outcome = OutcomeRecord(status=status, clean=clean)
    return Lines([rules.status_event(status), rules.done_event(outcome)])


_TREE = """
WITH RECURSIVE tree (number, ended_at) AS (
    SELECT number, ended_at FROM runs WHERE number = :root
    UNION ALL
    SELECT runs.number, runs.ended_at FROM runs JOIN tree ON runs.parent = tree.number
)
SELECT json_group_array(number), count(*), coalesce(sum(ended_at < :before), 0) FROM tree
"""


# The last event stays: if its place were used again, readers of all runs would miss the next event.
_FORGET = """
DELETE FROM events WHERE run IN (SELECT value FROM json_each(?)) AND rowid < (SELECT max(rowid) FROM events)
"""


def purge(tx: LiteTransaction, before: float, limit: int) -> int:
    """Delete trees that ended before a time, and old idempotency keys."""
    tx.run("DELETE FROM answered WHERE at < ?", (before - KEYS_KEPT,))
    roots = "SELECT number FROM runs WHERE parent IS NULL AND ended_at IS NOT NULL AND ended_at < ? ORDER BY ended_at"
    count = 0
    for (root,) in tx.all(roots, (before,)):
        if count >= limit:
            break
        row = tx.one(_TREE, {"root": root, "before": before})
        assert row is not None, "an aggregate has one row"
        numbers, size, ended = row
        if size == ended:  # a child may outlive its parent
            tx.run(_FORGET, (numbers,))
            for table in ("outcomes", "inputs"):
                tx.run(f"DELETE FROM {table} WHERE run IN (SELECT value FROM json_each(?))", (numbers,))  # noqa: S608 - ours
            tx.run("DELETE FROM runs WHERE number IN (SELECT value FROM json_each(?))", (numbers,))
            count += size
    return count

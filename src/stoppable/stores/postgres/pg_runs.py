"""Registers, acknowledges and ends runs, keeps their logs, and deletes those that ended long ago.

Each takes two round trips: one locks and reads, one writes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoppable._core.stop import Receipt
from stoppable._core.values import Mode, Status
from stoppable.errors import Fenced, RunConflict, RunNotFound, StoppableError
from stoppable.records import Draft, EventType, OutcomeRecord, RunRecord, StopIntent, replace_fields
from stoppable.stores import rules
from stoppable.stores.base import KEYS_KEPT, Registration
from stoppable.stores.postgres.pg_transaction import (
    INSERT,
    RECORD,
    UPDATE,
    PgSession,
    PgTransaction,
    brief,
    brief_of,
    mark,
    plain,
)
from stoppable.stores.sql import queries, rows
from stoppable.stores.sql.queries import row_of
from stoppable.stores.sql.rows import Append, Lines, Row
from stoppable.stores.sql.stop_requests import TombstoneAddress

_LOCKED = """SELECT id, number, epoch, ended_at IS NULL, last_event, is_truncated, status, started_at, metadata
 FROM runs WHERE id = ANY(%s) ORDER BY number FOR NO KEY UPDATE"""
_INSERT_EVENTS = """INSERT INTO events (run, seq, at, type, mark, data)
 SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::float8[], %s::text[], %s::text[], %s::text[])"""
_LENGTHS = """UPDATE runs SET last_event = ends.last, is_truncated = ends.is_truncated
 FROM unnest(%s::bigint[], %s::bigint[], %s::bool[]) AS ends (number, last, is_truncated)
 WHERE runs.number = ends.number"""
_MOVE = "UPDATE runs SET status = %s, started_at = %s, metadata = %s WHERE number = %s"
_PARTIALS = """SELECT run, data FROM events WHERE run = ANY(%s) AND type = 'partial' AND seq >= coalesce(
 (SELECT max(seq) FROM events AS earlier WHERE earlier.run = events.run AND type = 'partial' AND mark = 'set'), 0)
 ORDER BY run, seq"""
_OPEN = """
SELECT id, mark, sum(CASE type WHEN 'entered' THEN 1 ELSE -1 END) AS open
FROM runs JOIN events ON run = number
WHERE id = ANY(%s) AND ended_at IS NULL AND type IN ('entered', 'left')
GROUP BY number, mark HAVING sum(CASE type WHEN 'entered' THEN 1 ELSE -1 END) > 0 ORDER BY number, min(seq)
"""

_TRUNCATED = Lines([Draft(type=EventType.TRUNCATED)]).rows[0]


@dataclass(slots=True)
class Log:
    """The log of a locked run: where it ends, and what will be appended to it."""

    number: int
    last: int
    is_truncated: bool
    waiting: list[Row] = field(default_factory=list)

    def add(self, lines: Lines, most: int, now: float) -> int:
        """Queue lines, as far as a full log still takes them, and return the number of the last event."""
        for at, kind, data in lines.rows:
            if self.last < most or kind in rules.ALWAYS_KEPT:
                self._add(now if at is None else at, kind, data)
            elif not self.is_truncated:
                self.is_truncated = True
                self._add(now, _TRUNCATED[1], _TRUNCATED[2])
        return self.last

    def _add(self, at: float, kind: EventType, data: str) -> None:
        self.last += 1
        self.waiting.append((self.number, self.last, at, kind.value, mark(kind, data), data))


def write_logs(tx: PgTransaction, logs: Iterable[Log]) -> None:
    """Write the queued lines of logs; the caller stores where the logs end."""
    waiting = [row for log in logs for row in log.waiting]
    if waiting:
        tx.in_order()
        tx.run(_INSERT_EVENTS, [list(column) for column in zip(*waiting, strict=True)])


def append(tx: PgTransaction, run_id: str, epoch: int, lines: Lines) -> int:
    """Append to a run's log."""
    (answer,) = append_all(tx, [(run_id, epoch, lines)])
    if isinstance(answer, StoppableError):
        raise answer
    return answer


def append_all(tx: PgTransaction, calls: Sequence[Append]) -> list[int | StoppableError]:
    """Append to the logs of runs, and return the result or error of each call."""
    locked = {row[0]: row for row in tx.all(_LOCKED, ([run_id for run_id, _, _ in calls],))}
    logs: dict[str, Log] = {run_id: Log(row[1], row[4], row[5]) for run_id, row in locked.items()}
    records: dict[str, RunRecord] = {}
    answers: list[int | StoppableError] = []
    for run_id, epoch, lines in calls:
        try:
            row = _check_row(locked.get(run_id), run_id, epoch)
            if lines.moves:
                rules.check_statuses(lines.moves)
                records[run_id] = rules.apply_events(records.get(run_id) or _record(row), lines.moves, tx.now())
        except StoppableError as error:
            answers.append(error)
            continue
        answers.append(logs[run_id].add(lines, tx.events_kept, tx.now()))
        tx.touch(run_id)
    longer = [log for log in logs.values() if log.waiting]
    for run_id, record in records.items():
        facts = rows.encode(record.metadata) if record.metadata else None
        tx.run(_MOVE, (record.status.value, record.started_at, facts, logs[run_id].number))
    if longer:
        tx.run(
            _LENGTHS,
            ([log.number for log in longer], [log.last for log in longer], [log.is_truncated for log in longer]),
        )
    write_logs(tx, longer)
    return answers


def _check_row(row: Row | None, run_id: str, epoch: int) -> Row:
    if row is None:
        raise RunNotFound(run_id)
    if row[2] != epoch or not row[3]:
        raise Fenced(run_id)
    return row


def _record(row: Row) -> RunRecord:
    """Return the part of a record that an event can change."""
    status, started_at, facts = row[6:]
    metadata = {} if facts is None else rows.decode(facts)
    return RunRecord(id=row[0], name="", status=Status(status), started_at=started_at, metadata=metadata)


def in_flight(session: PgSession, run_ids: Sequence[str], events_kept: int) -> Mapping[str, tuple[str, ...] | None]:  # noqa: ARG001 - the row of a run says whether its log is truncated
    """Return the open boundaries of live runs."""
    ids = list(run_ids)
    live = session.all("SELECT id, is_truncated FROM runs WHERE id = ANY(%s) AND ended_at IS NULL", (ids,))
    open_counts = [(run_id, *rows.decode(mark), count) for run_id, mark, count in session.all(_OPEN, (ids,))]
    return queries.open_boundaries(live, open_counts)


def partials(session: PgSession, numbers: Sequence[int]) -> Mapping[int, list[Mapping[str, Any]]]:
    """Return the data of the partial events of runs, from the last one that replaced the partial."""
    data_of: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for number, data in session.all(_PARTIALS, (list(numbers),)):
        data_of[number].append(rows.decode(data))
    return data_of


_BY_ID = f"SELECT {RECORD} FROM runs WHERE id = %s"  # noqa: S608 - our own names
_ENDING = f"SELECT {RECORD}, is_truncated FROM runs WHERE id = %s FOR NO KEY UPDATE OF runs"  # noqa: S608
_WORKER = "SELECT 1 FROM workers WHERE id = %s AND state = 'open' FOR KEY SHARE"
_PARENT = f"{_BY_ID} FOR SHARE OF runs"
_GATE = """SELECT epoch, ended_at IS NULL, number, stop_requested_at FROM runs WHERE id = %s FOR NO KEY UPDATE"""
# The gates of a run and of its descendants on the same worker are closed.
_ACKNOWLEDGE = """
WITH RECURSIVE below (node) AS (
    SELECT %(number)s::bigint
    UNION
    SELECT number FROM runs JOIN below ON parent = node
), closed AS MATERIALIZED (
    SELECT number FROM runs
    WHERE number IN (SELECT node FROM below) AND ended_at IS NULL AND acknowledged < %(rank)s
        AND (number = %(number)s OR mode >= 0)
        AND worker = (SELECT worker FROM runs AS top WHERE top.number = %(number)s)
    ORDER BY number FOR NO KEY UPDATE OF runs
)
UPDATE runs SET acknowledged = %(rank)s WHERE number IN (SELECT number FROM closed)
"""


def register(tx: PgTransaction, record: RunRecord, request: str) -> Registration:
    """Store a new run.

    Its locks order it against holds, stops of the same id or key, the end of the worker and stops of the parent: each
    of these comes before and is seen here, or comes after and sees the run.
    """
    tx.lock("holds", "", shared=True)
    tx.lock("run", record.id)
    if record.key is not None:
        tx.lock("key", record.key)
    earlier_reply = tx.ask("SELECT request, owner FROM runs WHERE id = %s", (record.id,))
    worker_reply = tx.ask(_WORKER, (record.worker,))
    parent_reply = None if record.parent_id is None else tx.ask(_PARENT, (record.parent_id,))
    holds_reply = tx.ask("SELECT hold FROM holds ORDER BY number")
    number_reply = tx.ask("SELECT nextval('run_numbers')")
    earlier = earlier_reply.fetchone()
    if earlier is not None:
        if earlier != (request, record.owner):
            raise RunConflict(record.id)
        return Registration(record=rows.record(row_of(tx, record.id)), created=False)
    if worker_reply.fetchone() is None:
        raise Fenced(record.worker)
    above = None if parent_reply is None else parent_reply.fetchone()
    parent = None if above is None else rows.record(above)
    if parent is None:
        rules.refuse_held(record, rows.holds(holds_reply.fetchall()))
    now = tx.now()
    record = replace_fields(record, created_at=now, root_id=record.root_id if parent is None else parent.root_id)
    (number,) = number_reply.fetchall()[0]
    return Registration(record=_insert(tx, record, request, number, above, parent), created=True)


def _insert(
    tx: PgTransaction, record: RunRecord, request: str, number: int, above: Row | None, parent: RunRecord | None
) -> RunRecord:
    now = tx.now()
    has_begun = record.status is Status.RUNNING
    first = None if has_begun else rules.stop_of_parent(parent, now) or _take_waiting(tx, record, now)
    record = rules.start_child_record(record, parent, now) if has_begun else record
    input_ = rows.input_of(record)
    values = rows.values(record, request, None if above is None else above[-1], input_)
    tx.run(INSERT, (*plain(values), number, brief_of(record)))
    if rows.long_input(input_):
        tx.run("INSERT INTO inputs (run, input) VALUES (%s, %s)", (number, input_))
    tx.touch(record.id)
    log = Log(number, 0, is_truncated=False)
    if has_begun:
        last = log.add(Lines([rules.status_event(record.status, record)]), tx.events_kept, now)
        tx.run("UPDATE runs SET last_event = %s WHERE number = %s", (last, number))
        write_logs(tx, [log])
        record = replace_fields(record, last_event=last)
        if record.stop is not None and parent is not None and parent.worker != record.worker:
            tx.wake(record.worker, rows.intent_row(record.id, record.stop))
    elif first is not None:
        record = end(tx, log, rules.never_started_record(record, first, now))
    return record


def acknowledge(tx: PgTransaction, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> None:
    """Record that a gate is closed."""
    row = tx.one(_GATE, (run_id,))
    if row is None:
        raise RunNotFound(run_id)
    current_epoch, is_live, number, requested_at = row
    if current_epoch != epoch or not is_live:
        raise Fenced(run_id)
    receipt = rules.with_request_time(receipt, requested_at)
    tx.run("UPDATE runs SET receipt = %s, brief = %s WHERE number = %s", (rows.encode(receipt), brief(receipt), number))
    tx.run(_ACKNOWLEDGE, {"number": number, "rank": mode.rank})
    tx.touch(run_id)


def finish(
    tx: PgTransaction, run_id: str, epoch: int, outcome: OutcomeRecord, receipt: Receipt | None, lines: Lines
) -> RunRecord:
    """Write the terminal status, if there is none."""
    locked = tx.one(_ENDING, (run_id,))
    if locked is None:
        raise RunNotFound(run_id)
    rules.check_end(outcome, lines.moves)
    *row, is_truncated = locked
    record = rows.record(tuple(row))
    log = Log(row[-1], row[-2], is_truncated)
    now = tx.now()
    if record.over or record.epoch != epoch:
        return _note_late(tx, log, rules.note_late_end(record, outcome, now), outcome)
    record = rules.apply_events(record, lines.moves, now)
    return end(tx, log, rules.finish_record(record, outcome, receipt, now), lines)


def _note_late(tx: PgTransaction, log: Log, record: RunRecord, outcome: OutcomeRecord) -> RunRecord:
    last = log.add(Lines([rules.late_event(outcome)]), tx.events_kept, tx.now())
    tx.run(
        "UPDATE runs SET ended_late = %s, last_event = %s, is_truncated = %s WHERE number = %s",
        (record.ended_late, last, log.is_truncated, log.number),
    )
    write_logs(tx, [log])
    tx.touch(record.id)
    return replace_fields(record, last_event=last)


def end(tx: PgTransaction, log: Log, record: RunRecord, lines: Lines | None = None) -> RunRecord:
    """Write the record of a run that has ended, and its last events."""
    assert record.outcome is not None, "how it ended"
    ends = Lines([rules.status_event(record.status, record), rules.done_event(record.outcome)])
    last = log.add(ends if lines is None else lines.then(ends), tx.events_kept, tx.now())
    changing, long = rows.ending_values(record, record.outcome)
    tx.run(UPDATE, (*plain(changing), brief_of(record), last, log.is_truncated, log.number))
    if long is not None:
        tx.run("INSERT INTO outcomes (run, outcome) VALUES (%s, %s)", (log.number, long))
    write_logs(tx, [log])
    tx.touch(record.id)
    return replace_fields(record, last_event=last)


# Stops that arrived before their runs: all in one table, so that a start finds them in one round trip.

_TAKE = """DELETE FROM tombstones WHERE address = ANY(%s) AND (owner IS NULL OR owner = %s)
 RETURNING address, owner, expires, stop"""


def _take_waiting(tx: PgTransaction, record: RunRecord, now: float) -> StopIntent | None:
    """Remove the stops that waited for a run, and return them combined."""
    addresses = [run_address(record.id)] + ([] if record.key is None else [key_address(record.key)])
    order = [value for _, _, value in addresses]
    tombstones = tx.all(_TAKE, (order, record.owner))
    tombstones.sort(key=lambda row: (order.index(row[0]), row[1] is not None))
    return rows.waiting_stop([row[2:] for row in tombstones], now)


def run_address(run_id: str) -> TombstoneAddress:
    """Return where a stop waits for a run."""
    return "tombstones", "address", f"run {run_id}"


def key_address(key: str | None) -> TombstoneAddress:
    """Return where a stop waits for the next run of a key."""
    return "tombstones", "address", f"key {rows.encode(key)}"


_PAGE = 100
_LOOKED_AT = 1000  # how many trees with live runs one call skips
_ROOTS = """SELECT number, ended_at FROM runs WHERE parent IS NULL AND ended_at < %s AND ended_at >= %s
 AND (ended_at, number) > (%s, %s) ORDER BY ended_at, number LIMIT %s"""
_TREES = """
WITH RECURSIVE tree (root, number, ended_at) AS (
    SELECT number, number, ended_at FROM runs WHERE number = ANY(%s)
    UNION ALL
    SELECT root, runs.number, runs.ended_at FROM runs JOIN tree ON runs.parent = tree.number
)
SELECT root, array_agg(number), bool_and(coalesce(ended_at < %s, false)) FROM tree GROUP BY root
"""
_TABLES = (("events", "run"), ("outcomes", "run"), ("inputs", "run"), ("runs", "number"))


def purge(tx: PgTransaction, before: float, limit: int) -> int:
    """Delete trees that ended before a time, and old idempotency keys."""
    tx.run("DELETE FROM answered WHERE at < %s", (before - KEYS_KEPT,))
    tx.run("DELETE FROM followed WHERE expires < %s", (tx.now(),))
    numbers = _old_runs(tx, before, limit)
    for table, column in _TABLES:
        tx.run(f"DELETE FROM {table} WHERE {column} = ANY(%s)", (numbers,))  # noqa: S608 - our own names
    return len(numbers)


def _old_runs(tx: PgTransaction, before: float, limit: int) -> list[int]:
    """Return the numbers of runs in trees that have ended completely, oldest first."""
    old: list[int] = []
    last, looked_at = (-math.inf, 0), 0
    while len(old) < limit and looked_at < limit + _LOOKED_AT:
        roots = tx.all(_ROOTS, (before, last[0], *last, _PAGE))
        if not roots:
            break
        ended = tx.all(_TREES, ([root for root, _ in roots], before))
        trees = {root: numbers for root, numbers, is_old in ended if is_old}
        for root, _ in roots:
            if len(old) < limit:
                old += trees.get(root, ())  # a child may outlive its parent
        last, looked_at = (roots[-1][1], roots[-1][0]), looked_at + len(roots)
    return old

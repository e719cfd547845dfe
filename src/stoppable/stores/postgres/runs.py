"""Registers, acknowledges and ends runs in two round trips: one locks and reads, one writes."""

from __future__ import annotations

from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.errors import Fenced, RunConflict, RunNotFound
from stoppable.records import OutcomeRecord, RunRecord, changed
from stoppable.stores import rules
from stoppable.stores.base import Registered
from stoppable.stores.postgres import events, stops, tombstones
from stoppable.stores.postgres.events import Log
from stoppable.stores.postgres.rows import INSERT, RECORD, UPDATE, brief, brief_of, plain
from stoppable.stores.postgres.transaction import Transaction
from stoppable.stores.sql import rows
from stoppable.stores.sql.queries import row_of
from stoppable.stores.sql.rows import Lines, Row

_BY_ID = f"SELECT {RECORD} FROM runs WHERE id = %s"  # noqa: S608 - our own names
_ENDING = f"SELECT {RECORD}, is_truncated FROM runs WHERE id = %s FOR NO KEY UPDATE OF runs"  # noqa: S608
_WORKER = "SELECT 1 FROM workers WHERE id = %s AND state = 'open' FOR KEY SHARE"
_PARENT = f"{_BY_ID} FOR SHARE OF runs"
_GATE = """SELECT epoch, ended_at IS NULL, number, stop_requested_at FROM runs WHERE id = %s FOR NO KEY UPDATE"""


def register(tx: Transaction, record: RunRecord, request: str) -> Registered:
    """Store a new run.

    Its locks order it against holds, stops of the same id or key, the end of the worker and stops of the parent: each
    of these comes before and is seen here, or comes after and sees the run.
    """
    tx.lock("holds", "", shared=True)
    tx.lock("run", record.id)
    if record.key is not None:
        tx.lock("key", record.key)
    asked_known = tx.ask("SELECT request, owner FROM runs WHERE id = %s", (record.id,))
    asked_worker = tx.ask(_WORKER, (record.worker,))
    asked_parent = None if record.parent_id is None else tx.ask(_PARENT, (record.parent_id,))
    asked_holds = tx.ask("SELECT hold FROM holds ORDER BY number")
    asked_number = tx.ask("SELECT nextval('run_numbers')")
    known = asked_known.fetchone()
    if known is not None:
        if known != (request, record.owner):
            raise RunConflict(record.id)
        return Registered(record=rows.record(row_of(tx, record.id)), created=False)
    if asked_worker.fetchone() is None:
        raise Fenced(record.worker)
    above = None if asked_parent is None else asked_parent.fetchone()
    parent = None if above is None else rows.record(above)
    if parent is None:
        rules.refuse_held(record, rows.holds(asked_holds.fetchall()))
    now = tx.now()
    record = changed(record, created_at=now, root_id=record.root_id if parent is None else parent.root_id)
    (number,) = asked_number.fetchall()[0]
    return Registered(record=_insert(tx, record, request, number, above, parent), created=True)


def _insert(
    tx: Transaction, record: RunRecord, request: str, number: int, above: Row | None, parent: RunRecord | None
) -> RunRecord:
    now = tx.now()
    has_begun = record.status is Status.RUNNING
    first = None if has_begun else rules.stop_of_parent(parent, now) or tombstones.take(tx, record, now)
    record = rules.begun(record, parent, now) if has_begun else record
    given = rows.input_of(record)
    values = rows.values(record, request, None if above is None else above[-1], given)
    tx.run(INSERT, (*plain(values), number, brief_of(record)))
    if rows.long_input(given):
        tx.run("INSERT INTO inputs (run, input) VALUES (%s, %s)", (number, given))
    tx.touch(record.id)
    log = Log(number, 0, is_truncated=False)
    if has_begun:
        last = log.add(Lines([rules.status_event(record.status, record)]), tx.events_kept, now)
        tx.run("UPDATE runs SET last_event = %s WHERE number = %s", (last, number))
        events.write(tx, [log])
        record = changed(record, last_event=last)
        if record.stop is not None and parent is not None and parent.worker != record.worker:
            tx.wake(record.worker, stops.intent_row(record.id, record.stop))
    elif first is not None:
        record = end(tx, log, rules.born_stopped(record, first, now))
    return record


def acknowledge(tx: Transaction, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> None:
    """Record that a gate is closed."""
    row = tx.one(_GATE, (run_id,))
    if row is None:
        raise RunNotFound(run_id)
    known, is_live, number, requested_at = row
    if known != epoch or not is_live:
        raise Fenced(run_id)
    receipt = rules.timed(receipt, requested_at)
    tx.run("UPDATE runs SET receipt = %s, brief = %s WHERE number = %s", (rows.encode(receipt), brief(receipt), number))
    stops.acknowledge(tx, number, mode)
    tx.touch(run_id)


def finish(
    tx: Transaction, run_id: str, epoch: int, outcome: OutcomeRecord, receipt: Receipt | None, lines: Lines
) -> RunRecord:
    """Write the terminal status, if there is none."""
    found = tx.one(_ENDING, (run_id,))
    if found is None:
        raise RunNotFound(run_id)
    rules.check_end(outcome, lines.moves)
    *row, is_truncated = found
    record = rows.record(tuple(row))
    log = Log(row[-1], row[-2], is_truncated)
    now = tx.now()
    if record.over or record.epoch != epoch:
        return _note_late(tx, log, rules.late(record, outcome, now), outcome)
    record = rules.moved_by(record, lines.moves, now)
    return end(tx, log, rules.over(record, outcome, receipt, now), lines)


def _note_late(tx: Transaction, log: Log, record: RunRecord, outcome: OutcomeRecord) -> RunRecord:
    last = log.add(Lines([rules.late_event(outcome)]), tx.events_kept, tx.now())
    tx.run(
        "UPDATE runs SET ended_late = %s, last_event = %s, is_truncated = %s WHERE number = %s",
        (record.ended_late, last, log.is_truncated, log.number),
    )
    events.write(tx, [log])
    tx.touch(record.id)
    return changed(record, last_event=last)


def end(tx: Transaction, log: Log, record: RunRecord, lines: Lines | None = None) -> RunRecord:
    """Write the record of a run that has ended, and its last events."""
    assert record.outcome is not None, "how it ended"
    ends = Lines([rules.status_event(record.status, record), rules.done_event(record.outcome)])
    last = log.add(ends if lines is None else lines.then(ends), tx.events_kept, tx.now())
    changing, long = rows.ending(record, record.outcome)
    tx.run(UPDATE, (*plain(changing), brief_of(record), last, log.is_truncated, log.number))
    if long is not None:
        tx.run("INSERT INTO outcomes (run, outcome) VALUES (%s, %s)", (log.number, long))
    events.write(tx, [log])
    tx.touch(record.id)
    return changed(record, last_event=last)

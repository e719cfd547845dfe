"""Registers, acknowledges and ends runs."""

from __future__ import annotations

from functools import lru_cache

from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.errors import Fenced, RunConflict, RunNotFound
from stoppable.records import OutcomeRecord, RunRecord, changed
from stoppable.stores import rules
from stoppable.stores.base import Registered
from stoppable.stores.sql import holds, rows
from stoppable.stores.sql.queries import row_of
from stoppable.stores.sql.rows import Lines
from stoppable.stores.sqlite import events, stops, tombstones
from stoppable.stores.sqlite.rows import INSERT, RECORD, UPDATE
from stoppable.stores.sqlite.transaction import Transaction

_BY_ID = f"SELECT {RECORD} FROM runs WHERE id = ?"  # noqa: S608 - our own names


def register(tx: Transaction, record: RunRecord, request: str) -> Registered:
    """Store a new run."""
    known = tx.one("SELECT request, owner FROM runs WHERE id = ?", (record.id,))
    if known is not None:
        if known != (request, record.owner):
            raise RunConflict(record.id)
        return Registered(record=rows.record(row_of(tx, record.id)), created=False)
    if tx.one("SELECT 1 FROM workers WHERE id = ? AND state = 'open'", (record.worker,)) is None:
        raise Fenced(record.worker)
    above = None if record.parent_id is None else tx.one(_BY_ID, (record.parent_id,))
    parent = None if above is None else rows.record(above)
    if parent is None:
        rules.refuse_held(record, holds.holds(tx))
    now = tx.now()
    record = changed(record, created_at=now, root_id=record.root_id if parent is None else parent.root_id)
    has_begun = record.status is Status.RUNNING
    record = rules.begun(record, parent, now) if has_begun else record
    given = rows.input_of(record)
    below = None if above is None else events.last_of(above)[0]
    inserted = tx.one(INSERT, rows.values(record, request, below, given))
    assert inserted is not None, "it returns the number"
    number = inserted[0]
    if rows.long_input(given):
        tx.run("INSERT INTO inputs (run, input) VALUES (?, ?)", (number, given))
    tx.touch(record.id)
    if has_begun:
        last = events.add(tx, number, 0, Lines([rules.status_event(record.status, record)]))
        record = changed(record, last_event=last)
        if record.stop is not None and parent is not None and parent.worker != record.worker:
            tx.woken.add(record.worker)
    elif (first := rules.stop_of_parent(parent, now) or tombstones.take(tx, record, now)) is not None:
        record = end(tx, number, 0, rules.born_stopped(record, first, now))
    return Registered(record=record, created=True)


def acknowledge(tx: Transaction, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> None:
    """Record that a gate is closed."""
    row = tx.one("SELECT epoch, ended_at IS NULL, number, stop_requested_at FROM runs WHERE id = ?", (run_id,))
    if row is None:
        raise RunNotFound(run_id)
    known, is_live, number, requested_at = row
    if known != epoch or not is_live:
        raise Fenced(run_id)
    tx.run("UPDATE runs SET receipt = ? WHERE number = ?", (rows.encode(rules.timed(receipt, requested_at)), number))
    stops.acknowledge(tx, number, mode)
    tx.touch(run_id)


def finish(
    tx: Transaction, run_id: str, epoch: int, outcome: OutcomeRecord, receipt: Receipt | None, lines: Lines
) -> RunRecord:
    """Write the terminal status, if there is none."""
    row = row_of(tx, run_id)
    rules.check_end(outcome, lines.moves)
    number, last = events.last_of(row)
    record = rows.record(row)
    if record.over or record.epoch != epoch:
        tx.touch(run_id)
        after = rules.late(record, outcome, tx.now())
        if after is not record:
            tx.run("UPDATE runs SET ended_late = ? WHERE number = ?", (after.ended_late, number))
        lines = Lines([rules.late_event(outcome)])
        return changed(after, last_event=events.add(tx, number, last, lines))
    now = tx.now()
    record = rules.moved_by(record, lines.moves, now)
    return end(tx, number, last, rules.over(record, outcome, receipt, now), lines)


def end(tx: Transaction, number: int, last: int, record: RunRecord, lines: Lines | None = None) -> RunRecord:
    """Write the record of a run that has ended, and its last events."""
    assert record.outcome is not None, "how it ended"
    ends = _last_words(record.status, record.outcome.clean) if record.stop is None else _words(record, record.outcome)
    last = events.add(tx, number, last, ends if lines is None else lines.then(ends))
    changing, long = rows.ending(record, record.outcome)
    tx.run(UPDATE, (*changing, number))
    if long is not None:
        tx.run("INSERT INTO outcomes (run, outcome) VALUES (?, ?)", (number, long))
    tx.touch(record.id)
    object.__setattr__(
        record, "last_event", last
    )  # nothing else has it yet, and a copy would take longer than the rest
    return record


def _words(record: RunRecord, outcome: OutcomeRecord) -> Lines:
    return Lines([rules.status_event(outcome.status, record), rules.done_event(outcome)])


@lru_cache
def _last_words(status: Status, clean: bool | None) -> Lines:  # noqa: FBT001 - a key
    outcome = OutcomeRecord(status=status, clean=clean)
    return Lines([rules.status_event(status), rules.done_event(outcome)])

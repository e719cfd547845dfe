"""Stores a stop of one run or many, with everything below them: one round trip locks, another writes.

A stop of very many runs is committed in parts, so that no other replica waits long for the locks of one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from stoppable._core.state import Mode, Status
from stoppable.errors import RunNotFound
from stoppable.records import RunRecord, Selector, StopAnswer, StopIntent, StopResult, changed
from stoppable.stores import rules
from stoppable.stores.postgres import events, single_stop, tombstones
from stoppable.stores.postgres.events import Log
from stoppable.stores.postgres.rows import RECORD
from stoppable.stores.postgres.transaction import Transaction
from stoppable.stores.sql import holds, rows
from stoppable.stores.sql.queries import stopped_by
from stoppable.stores.sql.requests import StopRequest, earlier_result, remember
from stoppable.stores.sql.rows import Lines, Row

PART = 250
"""How many runs that a selector matches are stopped in one transaction."""

_LOCKED = """
WITH RECURSIVE tops (top) AS MATERIALIZED ({}), below (node) AS (
    SELECT top FROM tops
    UNION
    SELECT number FROM runs JOIN below ON parent = node
)
SELECT number, id, worker, status, mode, reason, last_event, is_truncated FROM runs
WHERE number IN (SELECT node FROM below) AND ended_at IS NULL ORDER BY number FOR NO KEY UPDATE OF runs
"""
_RECORDS = f"SELECT {RECORD} FROM runs WHERE number IN ({{}}) ORDER BY number"  # noqa: S608 - our own names
_GIVEN = "SELECT unnest(%s::bigint[])"
_STOP = """
UPDATE runs SET
    mode = %s,
    grace = %s,
    reason = coalesce(reason, %s),
    stop_requested_at = coalesce(stop_requested_at, %s),
    started_at = CASE status WHEN 'running' THEN coalesce(started_at, %s) ELSE started_at END,
    status = CASE status WHEN 'running' THEN 'stopping' ELSE status END,
    last_event = ends.last
FROM unnest(%s::bigint[], %s::bigint[]) AS ends (number, last) WHERE runs.number = ends.number
"""
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

Tops = tuple[str, Sequence[Any]]
"""The statement for the numbers of the runs that a stop names, and its values."""


def intent_row(run_id: str, stop: StopIntent) -> Row:
    """Return a stop as it is sent to a worker."""
    return run_id, stop.mode.rank, stop.grace, rows.encode(stop.reason)


def request_stop(tx: Transaction, request: StopRequest) -> StopResult:
    """Store a stop."""
    target = request.target
    if isinstance(target, str) and not (request.dry_run or request.hold):
        stopped = single_stop.stop(tx, target, request)
        if stopped is not None:
            return stopped
    if (earlier := earlier_result(tx, request, request.id if tx.is_repeated else None)) is not None:
        return earlier
    rules.check_waiting(target, if_unknown_hold=request.if_unknown_hold)
    held = rules.held_by(target, request.owner) if request.hold else None
    if request.dry_run:
        return _preview(tx, request, held)
    if held is not None:
        tx.lock("holds", "")
    if isinstance(target, str):
        result = _stop_one(tx, target, request)
    else:
        if target.key is not None:
            tx.lock("key", target.key)
        result = _stop_many(tx, target, request, held)
    if not (isinstance(target, str) and result.waits_until):
        remember(tx, request, result)
    return result


def _preview(tx: Transaction, request: StopRequest, held: Selector | None) -> StopResult:
    target = request.target
    sql, values = stopped_by(tx, target, request.owner)
    found = tx.all(_RECORDS.format(sql), values)
    if not found and isinstance(target, str) and not request.if_unknown_hold:
        raise RunNotFound(target)
    return StopResult(
        answers=tuple(_answer(rows.record(row), request.intent) for row in found),
        hold=None if held is None else holds.make(tx, held, request.intent),
    )


def _answer(record: RunRecord, intent: StopIntent) -> StopAnswer:
    return StopAnswer(record=record, answer=rules.answer_of(record, intent))


def _stop_one(tx: Transaction, run_id: str, request: StopRequest) -> StopResult:
    tx.lock("run", run_id)
    answers = _stop(tx, stopped_by(tx, run_id, request.owner), request)
    if answers:
        return StopResult(answers=answers)
    if not request.if_unknown_hold:
        raise RunNotFound(run_id)
    return StopResult(waits_until=tombstones.wait_for_run(tx, run_id, request))


def _stop_many(tx: Transaction, target: Selector, request: StopRequest, held: Selector | None) -> StopResult:
    progress = request.progress
    numbers, placed, answers = progress.numbers, progress.hold, list(progress.answers)
    if numbers is None:
        numbers = [number for (number,) in tx.all(*stopped_by(tx, target, request.owner))]
        placed = None if held is None else holds.make(tx, held, request.intent)
        if placed is not None:
            holds.keep(tx, placed)
    first = progress.done
    for start in range(first, len(numbers), PART):
        if start > first:
            tx.next_part()
        answers += _stop(tx, (_GIVEN, (numbers[start : start + PART],)), request)
        tx.later.append(partial(progress.keep, numbers, start + PART, placed, tuple(answers)))
    until = None
    if not numbers and request.if_unknown_hold is not False:
        until = tombstones.wait_for_key(tx, target, request)
    return StopResult(answers=tuple(answers), hold=placed, waits_until=until)


def _stop(tx: Transaction, tops: Tops, request: StopRequest) -> tuple[StopAnswer, ...]:
    """Stop runs with everything below them, wake their workers, and return answers for the named runs."""
    nodes, named = _locked(tx, tops)
    intent, at = request.intent, rules.asked(request.asked_at, tx.now())
    lasts = _mark(tx, [node for node in nodes if node[4] < intent.mode.rank], intent, at)
    answers = []
    for row in named:
        record = rows.record(row)
        answer = rules.answer_of(record, intent)
        if row[-1] in lasts:
            record = _stopped(record, intent, at, lasts[row[-1]])
        answers.append(StopAnswer(record=record, answer=answer))
    return tuple(answers)


def _locked(tx: Transaction, tops: Tops) -> tuple[list[Row], list[Row]]:
    """Lock trees, and return their live nodes and the runs that were named.

    A statement that waited for a lock does not see a child that was registered meanwhile, so it is repeated until
    nothing new appears. The first repetition is sent together with it, and is nearly always enough.
    """
    sql, values = _LOCKED.format(tops[0]), tops[1]
    count = -1
    asked = tx.ask(sql, values)
    while True:
        again, named = tx.ask(sql, values), tx.ask(_RECORDS.format(tops[0]), values)
        count, nodes = len(asked.fetchall()), again.fetchall()
        if len(nodes) <= count:
            return nodes, named.fetchall()
        asked = tx.ask(sql, values)


def _mark(tx: Transaction, nodes: Sequence[Row], intent: StopIntent, at: float) -> dict[int, int]:
    """Write a stop to locked runs, and return where the log of each ends now."""
    reason = rows.encode(intent.reason)
    logs = []
    for number, run_id, worker, status, _, earlier, last, is_truncated in nodes:
        log = Log(number, last, is_truncated)
        logs.append(log)
        before = None if earlier is None else rows.stop_of(0, None, earlier)
        if status != Status.PENDING.value:
            told = rules.status_of_stop(Status.STOPPING, rules.raised(before, intent))
            log.add(Lines([told]), tx.events_kept, at)
        tx.touch(run_id)
        tx.wake(worker, (run_id, intent.mode.rank, intent.grace, earlier or reason))
    if logs:
        ends = [log.number for log in logs], [log.last for log in logs]
        tx.run(_STOP, (intent.mode.rank, intent.grace, reason, at, at, *ends))
        events.write(tx, logs)
    return {log.number: log.last for log in logs}


def _stopped(record: RunRecord, intent: StopIntent, at: float, last: int) -> RunRecord:
    is_running = record.status is Status.RUNNING
    return changed(
        record,
        stop=rules.raised(record.stop, intent),
        stop_requested_at=at if record.stop_requested_at is None else record.stop_requested_at,
        started_at=at if is_running and record.started_at is None else record.started_at,
        status=Status.STOPPING if is_running else record.status,
        last_event=last,
    )


def acknowledge(tx: Transaction, number: int, mode: Mode) -> None:
    """Record that the gates of a run and of its descendants on the same worker are closed."""
    tx.run(_ACKNOWLEDGE, {"number": number, "rank": mode.rank})

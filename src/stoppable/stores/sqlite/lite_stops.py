"""Stores a stop of one run or many, with everything below them; a stop of a run that is not there waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoppable._core.stop import Answer
from stoppable._core.values import Mode, Status
from stoppable.errors import RunNotFound
from stoppable.records import Hold, RunRecord, Selector, StopAnswer, StopIntent, StopResult
from stoppable.stores import rules
from stoppable.stores.sql import rows, stop_requests
from stoppable.stores.sql.queries import select_stopped
from stoppable.stores.sql.rows import Row
from stoppable.stores.sql.stop_requests import PendingStop, TombstoneAddress, earlier_result, remember
from stoppable.stores.sqlite.lite_transaction import RECORD, LiteSession, LiteTransaction

_NAMED = "SELECT number, ended_at IS NULL, mode FROM runs WHERE number IN ({}) ORDER BY number"
_NODES = """
WITH RECURSIVE below (node) AS (
    SELECT value FROM json_each(:numbers)
    UNION
    SELECT number FROM runs JOIN below ON parent = node
)
SELECT number, id, worker, status <> :pending, reason FROM below JOIN runs ON number = node
WHERE ended_at IS NULL AND mode < :rank
"""
_EVENTS = """
INSERT INTO events (run, seq, at, type, data)
SELECT number, (SELECT coalesce(max(seq), 0) + 1 FROM events WHERE run = number), ?, 'status', ?
FROM runs WHERE number IN (SELECT value FROM json_each(?))
"""
_STOP = """
UPDATE runs SET
    mode = :rank,
    grace = :grace,
    reason = coalesce(reason, :reason),
    stop_requested_at = coalesce(stop_requested_at, :now),
    started_at = iif(status = :running, coalesce(started_at, :now), started_at),
    status = iif(status = :running, :stopping, status)
WHERE number IN (SELECT value FROM json_each(:nodes))
"""
_ACKNOWLEDGE = """
WITH RECURSIVE below (node) AS (
    SELECT :number
    UNION
    SELECT number FROM runs JOIN below ON parent = node
)
UPDATE runs SET acknowledged = :rank
WHERE number IN (SELECT node FROM below) AND ended_at IS NULL AND acknowledged < :rank
    AND (number = :number OR mode >= 0) AND worker = (SELECT worker FROM runs AS top WHERE top.number = :number)
"""


def request_stop(tx: LiteTransaction, pending: PendingStop) -> StopResult:
    """Store a stop."""
    request = pending.request
    target, intent = request.target, request.intent
    if (earlier := earlier_result(tx, request)) is not None:
        return earlier
    rules.check_waiting(request)
    on_hold = rules.hold_selector(target, request.owner) if request.hold else None
    sql, values = select_stopped(tx, target, request.owner)
    targets = tx.all(_NAMED.format(sql), values)
    if not targets and isinstance(target, str):
        if request.if_unknown != "wait":
            raise RunNotFound(target)
        if request.dry_run:
            return StopResult()
        return StopResult(waits_until=stop_requests.wait_for_run(tx, _run_address(target), target, request))
    hold = None if on_hold is None else stop_requests.new_hold(tx, on_hold, intent)
    answers = [(number, _answer(is_live, mode, intent)) for number, is_live, mode in targets]
    if request.dry_run:
        return _result(tx, answers, hold)
    if hold is not None:
        stop_requests.insert_hold(tx, hold)
    until = None
    if not targets and request.if_unknown != "ignore" and isinstance(target, Selector):
        until = stop_requests.wait_for_key(tx, _key_address(target.key), target, request)
    _stop(tx, [number for number, _ in answers], intent, rules.request_time(request.asked_at, tx.now()))
    result = _result(tx, answers, hold, until)
    remember(tx, request, result)
    return result


def _answer(is_live: int, mode: int, intent: StopIntent) -> Answer:
    if not is_live:
        return Answer.ALREADY_FINISHED
    if mode < 0:
        return Answer.ACCEPTED
    return Answer.ESCALATED if intent.mode.rank > mode else Answer.ALREADY_STOPPING


def acknowledge(tx: LiteTransaction, number: int, mode: Mode) -> None:
    """Record that the gates of a run and of its descendants on the same worker are closed."""
    tx.run(_ACKNOWLEDGE, {"number": number, "rank": mode.rank})


def _stop(tx: LiteTransaction, numbers: Sequence[int], intent: StopIntent, at: float) -> None:
    """Stop runs with everything below them, and wake their workers."""
    values: dict[str, Any] = {
        "numbers": rows.array(numbers),
        "now": at,
        "rank": intent.mode.rank,
        "grace": intent.grace,
        "reason": rows.encode(intent.reason),
        "pending": Status.PENDING.value,
        "running": Status.RUNNING.value,
        "stopping": Status.STOPPING.value,
    }
    nodes = tx.all(_NODES, values)
    begun_runs: dict[str | None, list[int]] = {}  # by the reason of an earlier stop
    for number, run_id, worker, has_begun, reason in nodes:
        tx.touch(run_id)
        tx.wake(worker, (run_id, intent.mode.rank, intent.grace, reason or values["reason"]))
        if has_begun:
            begun_runs.setdefault(reason, []).append(number)
    for reason, some in begun_runs.items():
        earlier = None if reason is None else rows.stop_of(0, None, reason)
        event = rules.status_of_stop(Status.STOPPING, rules.escalate(earlier, intent))
        tx.run(_EVENTS, (values["now"], rows.encode(event.data), rows.array(some)))
    tx.run(_STOP, {**values, "nodes": rows.array(node[0] for node in nodes)})


def _result(
    session: LiteSession, answers: Sequence[tuple[int, Answer]], hold: Hold | None, until: float | None = None
) -> StopResult:
    records = session.all(
        f"SELECT {RECORD} FROM (SELECT value AS wanted FROM json_each(?)) JOIN runs ON number = wanted",  # noqa: S608 - our own names
        (rows.array(number for number, _ in answers),),
    )
    by_number = dict(answers)
    return StopResult(
        answers=tuple(StopAnswer(record=rows.record(row), answer=by_number[row[-1]]) for row in records),
        hold=hold,
        waits_until=until,
    )


# Stops that arrived before their runs: those that wait for a run and for a key have a table each.


def take_waiting(tx: LiteTransaction, record: RunRecord, now: float) -> StopIntent | None:
    """Remove the stops that waited for a run, and return them combined."""
    tombstones = _take(tx, _run_address(record.id), record.owner)
    if record.key is not None:
        tombstones += _take(tx, _key_address(record.key), record.owner)
    return rows.waiting_stop(tombstones, now)


def _take(tx: LiteTransaction, address: TombstoneAddress, owner: str | None) -> list[Row]:
    table, column, value = address
    delete = f"DELETE FROM {table} WHERE {column} = ? AND (owner IS NULL OR owner = ?) RETURNING owner, expires, stop"  # noqa: S608 - our own names
    tombstones = tx.all(delete, (value, owner))
    return [row[1:] for row in sorted(tombstones, key=lambda row: row[0] is not None)]


def _run_address(run_id: str) -> TombstoneAddress:
    return "tombstones", "run_id", run_id


def _key_address(key: str | None) -> TombstoneAddress:
    return "key_tombstones", "key", rows.encode(key)

"""Stores a stop of one run or many, with everything below them, in the same few statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer
from stoppable.errors import RunNotFound
from stoppable.records import Hold, Selector, StopAnswer, StopIntent, StopResult
from stoppable.stores import rules
from stoppable.stores.sql import holds, rows
from stoppable.stores.sql.queries import stopped_by
from stoppable.stores.sql.requests import StopRequest, earlier_result, remember
from stoppable.stores.sqlite import tombstones
from stoppable.stores.sqlite.rows import RECORD
from stoppable.stores.sqlite.transaction import Session, Transaction

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


def request_stop(tx: Transaction, request: StopRequest) -> StopResult:
    """Store a stop."""
    target, intent = request.target, request.intent
    if (earlier := earlier_result(tx, request)) is not None:
        return earlier
    rules.check_waiting(target, if_unknown_hold=request.if_unknown_hold)
    held = rules.held_by(target, request.owner) if request.hold else None
    sql, values = stopped_by(tx, target, request.owner)
    chosen = tx.all(_NAMED.format(sql), values)
    if not chosen and isinstance(target, str):
        if not request.if_unknown_hold:
            raise RunNotFound(target)
        return StopResult(waits_until=None if request.dry_run else tombstones.wait_for_run(tx, target, request))
    placed = None if held is None else holds.make(tx, held, intent)
    answers = [(number, _answer(is_live, mode, intent)) for number, is_live, mode in chosen]
    if request.dry_run:
        return _result(tx, answers, placed)
    if placed is not None:
        holds.keep(tx, placed)
    until = None
    if not chosen and request.if_unknown_hold is not False and isinstance(target, Selector):
        until = tombstones.wait_for_key(tx, target, request)
    _stop(tx, [number for number, _ in answers], intent, rules.asked(request.asked_at, tx.now()))
    result = _result(tx, answers, placed, until)
    remember(tx, request, result)
    return result


def _answer(is_live: int, mode: int, intent: StopIntent) -> Answer:
    if not is_live:
        return Answer.ALREADY_FINISHED
    if mode < 0:
        return Answer.ACCEPTED
    return Answer.ESCALATED if intent.mode.rank > mode else Answer.ALREADY_STOPPING


def acknowledge(tx: Transaction, number: int, mode: Mode) -> None:
    """Record that the gates of a run and of its descendants on the same worker are closed."""
    tx.run(_ACKNOWLEDGE, {"number": number, "rank": mode.rank})


def _stop(tx: Transaction, numbers: Sequence[int], intent: StopIntent, at: float) -> None:
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
    begun: dict[str | None, list[int]] = {}  # by the reason of an earlier stop
    for number, run_id, worker, has_begun, reason in nodes:
        tx.touch(run_id)
        tx.woken.add(worker)
        if has_begun:
            begun.setdefault(reason, []).append(number)
    for reason, some in begun.items():
        earlier = None if reason is None else rows.stop_of(0, None, reason)
        told = rules.status_of_stop(Status.STOPPING, rules.raised(earlier, intent))
        tx.run(_EVENTS, (values["now"], rows.encode(told.data), rows.array(some)))
    tx.run(_STOP, {**values, "nodes": rows.array(node[0] for node in nodes)})


def _result(
    session: Session, answers: Sequence[tuple[int, Answer]], placed: Hold | None, until: float | None = None
) -> StopResult:
    found = session.all(
        f"SELECT {RECORD} FROM (SELECT value AS wanted FROM json_each(?)) JOIN runs ON number = wanted",  # noqa: S608 - our own names
        (rows.array(number for number, _ in answers),),
    )
    by_number = dict(answers)
    return StopResult(
        answers=tuple(StopAnswer(record=rows.record(row), answer=by_number[row[-1]]) for row in found),
        hold=placed,
        waits_until=until,
    )

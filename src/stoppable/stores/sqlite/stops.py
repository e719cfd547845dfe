"""How a stop is kept: for one run or many with all that is below them, in the same few statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoppable import _json
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer
from stoppable.errors import RunNotFound
from stoppable.records import Hold, Selector, StopAnswer, StopIntent, StopResult
from stoppable.stores import rules
from stoppable.stores.sql import rows
from stoppable.stores.sql.requests import StopRequest
from stoppable.stores.sql.rows import Row
from stoppable.stores.sqlite import holds, tombstones
from stoppable.stores.sqlite.transaction import Session, Transaction

LABELS = """NOT EXISTS (
    SELECT 1 FROM json_each(?) AS wanted
    WHERE wanted.value IS NOT (SELECT value FROM json_each(labels) AS had WHERE had.key = wanted.key)
)"""
"""The condition that a run has all of some labels, given as JSON."""

_KNOWN = "SELECT answers, hold, waits_until FROM answered WHERE key = ? AND owner IS ?"
_ONE = "SELECT number, ended_at IS NULL, mode FROM runs WHERE id = ? AND (? IS NULL OR owner = ?)"
# Those that match, but for those below another one that does: its stop is theirs.
_TOPMOST = """
WITH RECURSIVE chosen (top) AS MATERIALIZED (SELECT number FROM runs WHERE {}),
below (node) AS (
    SELECT number FROM chosen JOIN runs ON parent = top
    UNION
    SELECT number FROM below JOIN runs ON parent = node
)
SELECT number, 1, mode FROM chosen JOIN runs ON number = top WHERE top NOT IN (SELECT node FROM below) ORDER BY number
"""
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
    """Keep a stop."""
    target, intent = request.target, request.intent
    if request.idempotency_key is not None:
        row = tx.one(_KNOWN, (request.idempotency_key, request.owner))
        if row is not None:
            return _answered(tx, target, *row)
    rules.check_waiting(target, if_unknown_hold=request.if_unknown_hold)
    held = rules.held_by(target, request.owner) if request.hold else None
    chosen = _chosen(tx, target, request.owner)
    if not chosen and isinstance(target, str):
        if not request.if_unknown_hold:
            raise RunNotFound(target)
        return StopResult(waits_until=None if request.dry_run else _wait_for_run(tx, target, request.owner, intent))
    placed = None if held is None else holds.make(tx, held, intent)
    answers = [(number, _answer(is_live, mode, intent)) for number, is_live, mode in chosen]
    if request.dry_run:
        return _result(tx, answers, placed)
    if placed is not None:
        holds.keep(tx, placed)
    until = None
    if not chosen and request.if_unknown_hold and isinstance(target, Selector):
        until = tombstones.wait_for_key(tx, target, request.owner, intent)
    _stop(tx, [number for number, _ in answers], intent, rules.asked(request.asked_at, tx.now()))
    result = _result(tx, answers, placed, until)
    _remember(tx, request, result)
    return result


def _chosen(session: Session, target: str | Selector, owner: str | None) -> list[Row]:
    if isinstance(target, str):
        return session.all(_ONE, (target, owner, owner))
    terms, values = ["ended_at IS NULL"], []
    for column, value in (("owner", target.owner), ("name", target.name), ("owner", owner)):
        if value is not None:
            terms.append(f"{column} = ?")
            values.append(value)
    if target.labels:
        terms.append(LABELS)
        values.append(rows.encode(target.labels))
    if target.key is not None:
        terms.append("key = ?")
        values.append(rows.encode(target.key))
    return session.all(_TOPMOST.format(" AND ".join(terms)), values)


def _answer(is_live: int, mode: int, intent: StopIntent) -> Answer:
    if not is_live:
        return Answer.ALREADY_FINISHED
    if mode < 0:
        return Answer.ACCEPTED
    return Answer.ESCALATED if intent.mode.rank > mode else Answer.ALREADY_STOPPING


def acknowledge(tx: Transaction, number: int, mode: Mode) -> None:
    """Note that the gates of a run and of those below it on the same worker are closed."""
    tx.run(_ACKNOWLEDGE, {"number": number, "rank": mode.rank})


def _stop(tx: Transaction, numbers: Sequence[int], intent: StopIntent, at: float) -> None:
    """Stop runs with all that is below them, and wake their workers."""
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
    begun: dict[str | None, list[int]] = {}  # by the reason that they had before
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
        f"SELECT {rows.RECORD} FROM (SELECT value AS wanted FROM json_each(?)) JOIN runs ON number = wanted",  # noqa: S608 - our own names
        (rows.array(number for number, _ in answers),),
    )
    by_number = dict(answers)
    return StopResult(
        answers=tuple(StopAnswer(record=rows.record(row), answer=by_number[row[-1]]) for row in found),
        hold=placed,
        waits_until=until,
    )


def _remember(tx: Transaction, request: StopRequest, result: StopResult) -> None:
    answers = {item.record.id: item.answer for item in result.answers}
    placed = result.hold
    if request.idempotency_key is not None:
        tx.run(
            "INSERT INTO answered (key, owner, at, answers, hold, waits_until) VALUES (?, ?, ?, ?, ?, ?)",
            (
                request.idempotency_key,
                request.owner,
                tx.now(),
                rows.encode(answers),
                placed and rows.encode(placed),
                result.waits_until,
            ),
        )
    holds.note(tx, "stop", request.intent, request.target, {"runs": answers, "hold": placed and placed.id})


def _answered(
    session: Session, target: str | Selector, answers: str, hold: str | None, until: float | None
) -> StopResult:
    """Return an answer that was given before; of runs that were purged since, nothing is left to say."""
    by_id = rows.decode(answers)
    found = session.all(
        f"SELECT {rows.RECORD} FROM (SELECT value AS wanted FROM json_each(?)) JOIN runs ON id = wanted",  # noqa: S608
        (rows.encode(list(by_id)),),
    )
    if isinstance(target, str) and not found:
        raise RunNotFound(target)
    return StopResult(
        answers=tuple(StopAnswer(record=rows.record(row), answer=Answer(by_id[row[0]])) for row in found),
        hold=None if hold is None else _json.load(Hold, rows.decode(hold)),
        waits_until=until,
    )


def _wait_for_run(tx: Transaction, run_id: str, owner: str | None, intent: StopIntent) -> float:
    holds.note(tx, "stop", intent, run_id, {"runs": {}, "hold": None, "owner": owner})
    return tombstones.wait_for_run(tx, run_id, owner, intent)

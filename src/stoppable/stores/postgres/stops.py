"""How a stop is kept, for one run or many with all that is below them: a round trip locks, another writes.

A stop of very many runs is kept in parts, so that no other replica waits long for the locks of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoppable import _json
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer
from stoppable.errors import RunNotFound
from stoppable.records import Hold, RunRecord, Selector, StopAnswer, StopIntent, StopResult, changed
from stoppable.stores import rules
from stoppable.stores.postgres import events, holds, leaf, tombstones
from stoppable.stores.postgres.events import Log
from stoppable.stores.postgres.rows import RECORD
from stoppable.stores.postgres.transaction import Session, Transaction
from stoppable.stores.sql import rows
from stoppable.stores.sql.requests import StopRequest
from stoppable.stores.sql.rows import Lines, Row

PART = 250
"""How many runs that a selector matches are stopped in one transaction."""

LABELS = "labels @> %s::jsonb"
"""The condition that a run has all of some labels, given as JSON."""

_KNOWN = "SELECT answers, hold, waits_until FROM answered WHERE key = %s AND owner IS NOT DISTINCT FROM %s"
_ONE = "SELECT number FROM runs WHERE id = %s AND (%s::text IS NULL OR owner = %s)"
# Those that match, but for those below another one that does: its stop is theirs.
_TOPMOST = """
WITH RECURSIVE chosen (top) AS MATERIALIZED (SELECT number FROM runs WHERE {}),
below (node) AS (
    SELECT number FROM chosen JOIN runs ON parent = top
    UNION
    SELECT number FROM below JOIN runs ON parent = node
)
SELECT top FROM chosen WHERE top NOT IN (SELECT node FROM below) ORDER BY top
"""
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
"""The question for the numbers of the runs that a stop names, and its values."""


def intent_row(run_id: str, stop: StopIntent) -> Row:
    """Return what a worker is told of a stop."""
    return run_id, stop.mode.rank, stop.grace, rows.encode(stop.reason)


def request_stop(tx: Transaction, request: StopRequest) -> StopResult:
    """Keep a stop."""
    target = request.target
    if isinstance(target, str) and not (request.dry_run or request.hold):
        stopped = leaf.stop(tx, target, request)
        if stopped is not None:
            return stopped
    if request.idempotency_key is not None:
        tx.lock("answer", request.idempotency_key)
        row = tx.one(_KNOWN, (request.idempotency_key, request.owner))
        if row is not None:
            return _answered(tx, target, *row)
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
        _remember(tx, request, result)
    return result


def _preview(tx: Transaction, request: StopRequest, held: Selector | None) -> StopResult:
    target = request.target
    tops = _one(target, request.owner) if isinstance(target, str) else _matching(target, request.owner)
    found = tx.all(_RECORDS.format(tops[0]), tops[1])
    if not found and isinstance(target, str) and not request.if_unknown_hold:
        raise RunNotFound(target)
    return StopResult(
        answers=tuple(_answer(rows.record(row), request.intent) for row in found),
        hold=None if held is None else holds.make(tx, held, request.intent),
    )


def _answer(record: RunRecord, intent: StopIntent) -> StopAnswer:
    return StopAnswer(record=record, answer=rules.answer_of(record, intent))


def _one(run_id: str, owner: str | None) -> Tops:
    return _ONE, (run_id, owner, owner)


def _matching(target: Selector, owner: str | None) -> Tops:
    terms: list[str] = ["ended_at IS NULL"]
    values: list[Any] = []
    for column, value in (("owner", target.owner), ("name", target.name), ("owner", owner)):
        if value is not None:
            terms.append(f"{column} = %s")
            values.append(value)
    if target.labels:
        terms.append(LABELS)
        values.append(rows.encode(target.labels))
    if target.key is not None:
        terms.append("key = %s")
        values.append(rows.encode(target.key))
    # The condition has placeholders of its own, and no braces.
    return _TOPMOST.format(" AND ".join(terms)), values


def _stop_one(tx: Transaction, run_id: str, request: StopRequest) -> StopResult:
    tx.lock("run", run_id)
    answers = _stop(tx, _one(run_id, request.owner), request)
    if answers:
        return StopResult(answers=answers)
    if not request.if_unknown_hold:
        raise RunNotFound(run_id)
    holds.note(tx, "stop", request.intent, run_id, {"runs": {}, "hold": None, "owner": request.owner})
    return StopResult(waits_until=tombstones.wait_for_run(tx, run_id, request.owner, request.intent))


def _stop_many(tx: Transaction, target: Selector, request: StopRequest, held: Selector | None) -> StopResult:
    numbers = [number for (number,) in tx.all(*_matching(target, request.owner))]
    placed = None if held is None else holds.make(tx, held, request.intent)
    if placed is not None:
        holds.keep(tx, placed)
    answers: list[StopAnswer] = []
    for start in range(0, len(numbers), PART):
        if start > 0:
            tx.next_part()
        answers += _stop(tx, (_GIVEN, (numbers[start : start + PART],)), request)
    until = None
    if not numbers and request.if_unknown_hold:
        until = tombstones.wait_for_key(tx, target, request.owner, request.intent)
    return StopResult(answers=tuple(answers), hold=placed, waits_until=until)


def _stop(tx: Transaction, tops: Tops, request: StopRequest) -> tuple[StopAnswer, ...]:
    """Stop runs with all that is below them, wake their workers, and answer for those that were named."""
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

    A child that was being born while we waited for its parent is not in the answer of the question that waited: it is
    asked again until nothing new appears. The second time goes with the first, as it is rarely needed.
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
    """Write a stop to runs that are locked, and return where the log of each ends now."""
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
    """Note that the gates of a run and of those below it on the same worker are closed."""
    tx.run(_ACKNOWLEDGE, {"number": number, "rank": mode.rank})


def _remember(tx: Transaction, request: StopRequest, result: StopResult) -> None:
    answers = {item.record.id: item.answer for item in result.answers}
    placed = result.hold
    if request.idempotency_key is not None:
        tx.run(
            "INSERT INTO answered (key, owner, at, answers, hold, waits_until) VALUES (%s, %s, %s, %s, %s, %s)",
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
    found = session.all(f"SELECT {RECORD} FROM runs WHERE id = ANY(%s) ORDER BY number", (list(by_id),))  # noqa: S608
    if isinstance(target, str) and not found:
        raise RunNotFound(target)
    return StopResult(
        answers=tuple(StopAnswer(record=rows.record(row), answer=Answer(by_id[row[0]])) for row in found),
        hold=None if hold is None else _json.load(Hold, rows.decode(hold)),
        waits_until=until,
    )

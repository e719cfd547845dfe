"""What a database has of stop requests: earlier answers, stops that wait for their runs, holds, and the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stoppable import _json
from stoppable._core.stop import Answer
from stoppable._core.values import new_id
from stoppable.errors import HoldNotFound, RunNotFound
from stoppable.records import AuditEntry, Hold, Selector, StopAnswer, StopIntent, StopRequest, StopResult
from stoppable.stores import rules
from stoppable.stores.base import TOMBSTONE_SECONDS
from stoppable.stores.sql import rows
from stoppable.stores.sql.queries import SqlSession, SqlTransaction

_ANSWERED = "SELECT answers, hold, waits_until FROM answered WHERE key = ? AND owner IS NOT DISTINCT FROM ?"


@dataclass(slots=True)
class StopProgress:
    """What is kept of a stop that takes several transactions: when one of them fails, it goes on from there."""

    numbers: Sequence[int] | None = None
    """The runs that it stops; None before they are known."""
    done: int = 0
    """How many of them are stopped."""
    hold: Hold | None = None
    answers: Sequence[StopAnswer] = ()

    def keep(self, numbers: Sequence[int], done: int, hold: Hold | None, answers: Sequence[StopAnswer]) -> None:
        """Note what a transaction has kept."""
        self.numbers, self.done, self.hold, self.answers = numbers, done, hold, answers


@dataclass(frozen=True, slots=True)
class PendingStop:
    """A stop request on its way into the database."""

    request: StopRequest
    id: str = field(default_factory=new_id)
    """Its own, by which it is known again if the answer was lost."""
    progress: StopProgress = field(default_factory=StopProgress)


def earlier_result(tx: SqlTransaction, request: StopRequest, own: str | None = None) -> StopResult | None:
    """Return the result of an earlier request with the same idempotency key, or ``own``; purged runs are left out."""
    key = request.idempotency_key or own
    if key is None:
        return None
    tx.lock("answer", key)
    row = tx.one(_ANSWERED, (key, request.owner))
    if row is None:
        return None
    answers, hold, until = row
    by_id = rows.decode(answers)
    records = tx.records(list(by_id))
    if isinstance(request.target, str) and not records:
        raise RunNotFound(request.target)
    return StopResult(
        answers=tuple(StopAnswer(record=rows.record(row), answer=Answer(by_id[row[0]])) for row in records),
        hold=None if hold is None else _json.load(Hold, rows.decode(hold)),
        waits_until=until,
    )


def remember(tx: SqlTransaction, request: StopRequest, result: StopResult) -> None:
    """Store the result under the idempotency key, and add the stop to the audit."""
    answers = {item.record.id: item.answer for item in result.answers}
    hold, key = result.hold, request.idempotency_key
    if key is not None:
        tx.run(
            "INSERT INTO answered (key, owner, at, answers, hold, waits_until) VALUES (?, ?, ?, ?, ?, ?)",
            (key, request.owner, tx.now(), rows.encode(answers), hold and rows.encode(hold), result.waits_until),
        )
    entry: dict[str, object] = {"runs": answers, "hold": hold and hold.id}
    if isinstance(request.target, str) and result.answers:
        entry["owner"] = result.answers[0].record.owner
    add_audit_entry(tx, "stop", request.intent, request.target, entry)


TombstoneAddress = tuple[str, str, str]
"""Where a stop waits for a run or a key: a table, a column of it, and the value in that column."""


def wait_for_run(tx: SqlTransaction, address: TombstoneAddress, run_id: str, request: StopRequest) -> float:
    """Let a stop wait for a run, and return until when."""
    add_audit_entry(tx, "stop", request.intent, run_id, {"runs": {}, "hold": None, "owner": request.owner})
    return _wait(tx, address, request.owner, request.intent, TOMBSTONE_SECONDS)


def wait_for_key(
    tx: SqlTransaction, address: TombstoneAddress, selector: Selector, request: StopRequest
) -> float | None:
    """Let a stop wait for the next run of a key, and return until when; None if it does not wait."""
    if not rules.waits_for_key(selector, request.owner):
        return None
    owner = selector.owner if request.owner is None else request.owner
    earlier_run = tx.one(
        "SELECT 1 FROM runs WHERE key = ? AND (CAST(? AS TEXT) IS NULL OR owner = ?) LIMIT 1",
        (rows.encode(selector.key), owner, owner),
    )
    seconds = rules.waiting_seconds(has_run=earlier_run is not None, if_unknown=request.if_unknown)
    return None if seconds is None else _wait(tx, address, owner, request.intent, seconds)


def _wait(
    tx: SqlTransaction, address: TombstoneAddress, owner: str | None, intent: StopIntent, seconds: float
) -> float:
    table, column, value = address
    now = tx.now()
    tx.run(f"DELETE FROM {table} WHERE expires <= ?", (now,))  # noqa: S608 - our own names
    row = tx.one(
        f"DELETE FROM {table} WHERE {column} = ? AND owner IS NOT DISTINCT FROM ? RETURNING expires, stop",  # noqa: S608
        (value, owner),
    )
    earlier = None if row is None else _json.load(StopIntent, rows.decode(row[1]))
    until: float = max(now if row is None else row[0], now + seconds)
    tx.run(
        f"INSERT INTO {table} ({column}, owner, expires, stop) VALUES (?, ?, ?, ?)",  # noqa: S608
        (value, owner, until, rows.encode(rules.escalate(earlier, intent))),
    )
    return until


def new_hold(tx: SqlTransaction, selector: Selector, intent: StopIntent) -> Hold:
    """Return a hold that is not yet stored."""
    return Hold(id=new_id(), selector=selector, reason=intent.reason, created_at=tx.now())


def insert_hold(tx: SqlTransaction, hold: Hold) -> None:
    """Store a hold."""
    tx.run("INSERT INTO holds (id, hold) VALUES (?, ?)", (hold.id, rows.encode(hold)))


def place_hold(tx: SqlTransaction, selector: Selector, intent: StopIntent) -> Hold:
    """Refuse new starts."""
    tx.lock("holds", "")
    hold = new_hold(tx, selector, intent)
    insert_hold(tx, hold)
    add_audit_entry(tx, "hold", intent, selector, {"hold": hold.id})
    return hold


def release(tx: SqlTransaction, hold_id: str, actor: str | None) -> Hold:
    """Remove a hold."""
    row = tx.one("DELETE FROM holds WHERE id = ? RETURNING hold", (hold_id,))
    if row is None:
        raise HoldNotFound(hold_id)
    hold = _json.load(Hold, rows.decode(row[0]))
    intent = StopIntent(reason=replace(hold.reason, actor=actor))
    add_audit_entry(tx, "release", intent, hold.selector, {"hold": hold.id})
    return hold


def holds(session: SqlSession) -> Sequence[Hold]:
    """Return the holds that are in force."""
    return rows.holds(session.all("SELECT hold FROM holds ORDER BY number"))


def add_audit_entry(
    tx: SqlTransaction, action: str, intent: StopIntent, target: str | Selector, result: Mapping[str, Any]
) -> None:
    """Add an entry to the audit."""
    entry = rules.audit_entry(0, tx.now(), action, intent, target, result)
    tx.in_order()
    tx.run("INSERT INTO audit (at, action, entry) VALUES (?, ?, ?)", (entry.at, action, audit_text(entry)))


def audit_text(entry: AuditEntry) -> str:
    """Return what is stored of an entry beside its time and action."""
    return rows.encode((entry.actor, entry.reason, entry.target, entry.result))


def audit(session: SqlSession, after: int, limit: int) -> Sequence[AuditEntry]:
    """Return audit entries in order."""
    entries = session.all(
        "SELECT id, at, action, entry FROM audit WHERE id > ? ORDER BY id LIMIT ?", (max(after, 0), max(limit, 0))
    )
    return [_entry(*row) for row in entries]


def _entry(number: int, at: float, action: str, text: str) -> AuditEntry:
    actor, reason, target, result = rows.decode(text)
    return AuditEntry(id=number, at=at, action=action, actor=actor, reason=reason, target=target, result=result)

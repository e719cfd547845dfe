"""Holds, and the audit of stops, holds and releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stoppable import _json
from stoppable._core.ids import new_id
from stoppable.errors import HoldNotFound
from stoppable.records import AuditEntry, Hold, Selector, StopIntent
from stoppable.stores import rules
from stoppable.stores.sql import rows
from stoppable.stores.sql.session import SqlSession, SqlTransaction


def make(tx: SqlTransaction, selector: Selector, intent: StopIntent) -> Hold:
    """Return a hold that is not yet stored."""
    return Hold(id=new_id(), selector=selector, reason=intent.reason, created_at=tx.now())


def keep(tx: SqlTransaction, hold: Hold) -> None:
    """Store a hold."""
    tx.run("INSERT INTO holds (id, hold) VALUES (?, ?)", (hold.id, rows.encode(hold)))


def place_hold(tx: SqlTransaction, selector: Selector, intent: StopIntent) -> Hold:
    """Refuse new starts."""
    tx.lock("holds", "")
    hold = make(tx, selector, intent)
    keep(tx, hold)
    note(tx, "hold", intent, selector, {"hold": hold.id})
    return hold


def release(tx: SqlTransaction, hold_id: str, actor: str | None) -> Hold:
    """Remove a hold."""
    row = tx.one("DELETE FROM holds WHERE id = ? RETURNING hold", (hold_id,))
    if row is None:
        raise HoldNotFound(hold_id)
    hold = _json.load(Hold, rows.decode(row[0]))
    intent = StopIntent(reason=replace(hold.reason, actor=actor))
    note(tx, "release", intent, hold.selector, {"hold": hold.id})
    return hold


def holds(session: SqlSession) -> Sequence[Hold]:
    """Return the holds that are in force."""
    return rows.holds(session.all("SELECT hold FROM holds ORDER BY number"))


def note(
    tx: SqlTransaction, action: str, intent: StopIntent, target: str | Selector, result: Mapping[str, Any]
) -> None:
    """Add an entry to the audit."""
    entry = rules.audit_entry(0, tx.now(), action, intent, target, result)
    tx.in_order()
    tx.run("INSERT INTO audit (at, action, entry) VALUES (?, ?, ?)", (entry.at, action, entry_text(entry)))


def entry_text(entry: AuditEntry) -> str:
    """Return what is stored of an entry beside its time and action."""
    return rows.encode((entry.actor, entry.reason, entry.target, entry.result))


def audit(session: SqlSession, after: int, limit: int) -> Sequence[AuditEntry]:
    """Return audit entries in order."""
    found = session.all(
        "SELECT id, at, action, entry FROM audit WHERE id > ? ORDER BY id LIMIT ?", (max(after, 0), max(limit, 0))
    )
    return [_entry(*row) for row in found]


def _entry(number: int, at: float, action: str, text: str) -> AuditEntry:
    actor, reason, target, result = rows.decode(text)
    return AuditEntry(id=number, at=at, action=action, actor=actor, reason=reason, target=target, result=result)

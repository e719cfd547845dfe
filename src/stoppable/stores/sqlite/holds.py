"""Holds, and the audit of who stopped, held and released what."""

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
from stoppable.stores.sqlite.transaction import Session, Transaction


def make(session: Session, selector: Selector, intent: StopIntent) -> Hold:
    """Return a hold that is not yet kept."""
    return Hold(id=new_id(), selector=selector, reason=intent.reason, created_at=session.now())


def keep(tx: Transaction, hold: Hold) -> None:
    """Refuse new starts."""
    tx.run("INSERT INTO holds (id, hold) VALUES (?, ?)", (hold.id, rows.encode(hold)))


def place_hold(tx: Transaction, selector: Selector, intent: StopIntent) -> Hold:
    """Refuse new starts, and say who wanted it."""
    hold = make(tx, selector, intent)
    keep(tx, hold)
    note(tx, "hold", intent, selector, {"hold": hold.id})
    return hold


def release(tx: Transaction, hold_id: str, actor: str | None) -> Hold:
    """Remove a hold."""
    row = tx.one("DELETE FROM holds WHERE id = ? RETURNING hold", (hold_id,))
    if row is None:
        raise HoldNotFound(hold_id)
    hold = _json.load(Hold, rows.decode(row[0]))
    intent = StopIntent(reason=replace(hold.reason, actor=actor))
    note(tx, "release", intent, hold.selector, {"hold": hold.id})
    return hold


def holds(session: Session) -> Sequence[Hold]:
    """Return the holds that are in force."""
    return rows.holds(session.all("SELECT hold FROM holds ORDER BY number"))


def note(tx: Transaction, action: str, intent: StopIntent, target: str | Selector, result: Mapping[str, Any]) -> None:
    """Write down who did what."""
    entry = rules.audit_entry(0, tx.now(), action, intent, target, result)
    what = (entry.actor, entry.reason, entry.target, entry.result)
    tx.run("INSERT INTO audit (at, action, entry) VALUES (?, ?, ?)", (entry.at, action, rows.encode(what)))


def audit(session: Session, after: int, limit: int) -> Sequence[AuditEntry]:
    """Return the audit."""
    found = session.all(
        "SELECT id, at, action, entry FROM audit WHERE id > ? ORDER BY id LIMIT ?", (max(after, 0), max(limit, 0))
    )
    return [_entry(*row) for row in found]


def _entry(number: int, at: float, action: str, text: str) -> AuditEntry:
    actor, reason, target, result = rows.decode(text)
    return AuditEntry(id=number, at=at, action=action, actor=actor, reason=reason, target=target, result=result)

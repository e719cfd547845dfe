"""Stops that came before their runs."""

from __future__ import annotations

from stoppable import _json
from stoppable.records import RunRecord, Selector, StopIntent
from stoppable.stores import rules
from stoppable.stores.base import TOMBSTONE_SECONDS
from stoppable.stores.sql import rows
from stoppable.stores.sql.rows import Row
from stoppable.stores.sqlite.transaction import Transaction

_RUNS = ("tombstones", "run_id")
_KEYS = ("key_tombstones", "key")


def wait_for_run(tx: Transaction, run_id: str, owner: str | None, intent: StopIntent) -> float:
    """Let a stop wait for a run, and return until when."""
    return _wait(tx, *_RUNS, run_id, owner, intent, TOMBSTONE_SECONDS)


def wait_for_key(tx: Transaction, selector: Selector, owner: str | None, intent: StopIntent) -> float | None:
    """Let a stop wait for the next run of a conversation, and return until when."""
    if not rules.waits_for_key(selector, owner):
        return None
    owner = selector.owner if owner is None else owner
    key = rows.encode(selector.key)
    known = tx.one("SELECT 1 FROM runs WHERE key = ? AND (? IS NULL OR owner = ?) LIMIT 1", (key, owner, owner))
    return _wait(tx, *_KEYS, key, owner, intent, rules.waiting_seconds(has_run=known is not None))


def _wait(
    tx: Transaction, table: str, column: str, address: str, owner: str | None, intent: StopIntent, seconds: float
) -> float:
    now = tx.now()
    tx.run(f"DELETE FROM {table} WHERE expires <= ?", (now,))  # noqa: S608 - our own names
    row = tx.one(f"DELETE FROM {table} WHERE {column} = ? AND owner IS ? RETURNING expires, stop", (address, owner))  # noqa: S608
    earlier = None if row is None else _json.load(StopIntent, rows.decode(row[1]))
    until: float = max(now if row is None else row[0], now + seconds)
    tx.run(
        f"INSERT INTO {table} ({column}, owner, expires, stop) VALUES (?, ?, ?, ?)",  # noqa: S608
        (address, owner, until, rows.encode(rules.raised(earlier, intent))),
    )
    return until


def take(tx: Transaction, record: RunRecord, now: float) -> StopIntent | None:
    """Return the stop that waited for a run; it does not wait for another."""
    found = _take(tx, *_RUNS, record.id, record.owner)
    if record.key is not None:
        found += _take(tx, *_KEYS, rows.encode(record.key), record.owner)
    return rows.waiting_stop(found, now)


def _take(tx: Transaction, table: str, column: str, address: str, owner: str | None) -> list[Row]:
    gone = f"DELETE FROM {table} WHERE {column} = ? AND (owner IS NULL OR owner = ?) RETURNING owner, expires, stop"  # noqa: S608
    waited = tx.all(gone, (address, owner))
    return [row[1:] for row in sorted(waited, key=lambda row: row[0] is not None)]

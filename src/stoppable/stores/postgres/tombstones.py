"""Stops that came before their runs."""

from __future__ import annotations

from stoppable import _json
from stoppable.records import RunRecord, Selector, StopIntent
from stoppable.stores import rules
from stoppable.stores.base import TOMBSTONE_SECONDS
from stoppable.stores.postgres.transaction import Transaction
from stoppable.stores.sql import rows

_TAKE = """DELETE FROM tombstones WHERE address = ANY(%s) AND (owner IS NULL OR owner = %s)
 RETURNING address, owner, expires, stop"""


def wait_for_run(tx: Transaction, run_id: str, owner: str | None, intent: StopIntent) -> float:
    """Let a stop wait for a run, and return until when."""
    return _wait(tx, _run(run_id), owner, intent, TOMBSTONE_SECONDS)


def wait_for_key(tx: Transaction, selector: Selector, owner: str | None, intent: StopIntent) -> float | None:
    """Let a stop wait for the next run of a conversation, and return until when."""
    if not rules.waits_for_key(selector, owner):
        return None
    owner = selector.owner if owner is None else owner
    known = tx.one(
        "SELECT 1 FROM runs WHERE key = %s AND (%s::text IS NULL OR owner = %s) LIMIT 1",
        (rows.encode(selector.key), owner, owner),
    )
    return _wait(tx, _key(selector.key), owner, intent, rules.waiting_seconds(has_run=known is not None))


def _wait(tx: Transaction, address: str, owner: str | None, intent: StopIntent, seconds: float) -> float:
    now = tx.now()
    tx.run("DELETE FROM tombstones WHERE expires <= %s", (now,))
    row = tx.one(
        "DELETE FROM tombstones WHERE address = %s AND owner IS NOT DISTINCT FROM %s RETURNING expires, stop",
        (address, owner),
    )
    earlier = None if row is None else _json.load(StopIntent, rows.decode(row[1]))
    until: float = max(now if row is None else row[0], now + seconds)
    tx.run(
        "INSERT INTO tombstones (address, owner, expires, stop) VALUES (%s, %s, %s, %s)",
        (address, owner, until, rows.encode(rules.raised(earlier, intent))),
    )
    return until


def take(tx: Transaction, record: RunRecord, now: float) -> StopIntent | None:
    """Return the stop that waited for a run; it does not wait for another."""
    addresses = [_run(record.id)] if record.key is None else [_run(record.id), _key(record.key)]
    waited = tx.all(_TAKE, (addresses, record.owner))
    waited.sort(key=lambda row: (addresses.index(row[0]), row[1] is not None))
    return rows.waiting_stop([row[2:] for row in waited], now)


def _run(run_id: str) -> str:
    return f"run {run_id}"


def _key(key: str | None) -> str:
    return f"key {rows.encode(key)}"

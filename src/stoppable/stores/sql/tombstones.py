"""Stops that arrived before their runs."""

from __future__ import annotations

from stoppable import _json
from stoppable.records import Selector, StopIntent
from stoppable.stores import rules
from stoppable.stores.base import TOMBSTONE_SECONDS
from stoppable.stores.sql import holds, rows
from stoppable.stores.sql.requests import StopRequest
from stoppable.stores.sql.session import SqlTransaction

Address = tuple[str, str, str]
"""Where a stop waits for a run or a key: a table, a column of it, and the value in that column."""


def wait_for_run(tx: SqlTransaction, address: Address, run_id: str, request: StopRequest) -> float:
    """Let a stop wait for a run, and return until when."""
    holds.note(tx, "stop", request.intent, run_id, {"runs": {}, "hold": None, "owner": request.owner})
    return _wait(tx, address, request.owner, request.intent, TOMBSTONE_SECONDS)


def wait_for_key(tx: SqlTransaction, address: Address, selector: Selector, request: StopRequest) -> float | None:
    """Let a stop wait for the next run of a key, and return until when; None if it does not wait."""
    if not rules.waits_for_key(selector, request.owner):
        return None
    owner = selector.owner if request.owner is None else request.owner
    known = tx.one(
        "SELECT 1 FROM runs WHERE key = ? AND (CAST(? AS TEXT) IS NULL OR owner = ?) LIMIT 1",
        (rows.encode(selector.key), owner, owner),
    )
    seconds = rules.waiting_seconds(has_run=known is not None, if_unknown_hold=request.if_unknown_hold)
    return None if seconds is None else _wait(tx, address, owner, request.intent, seconds)


def _wait(tx: SqlTransaction, address: Address, owner: str | None, intent: StopIntent, seconds: float) -> float:
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
        (value, owner, until, rows.encode(rules.raised(earlier, intent))),
    )
    return until

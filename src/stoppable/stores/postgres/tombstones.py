"""Stops that arrived before their runs, all in one table, so that a start finds them in one round trip."""

from __future__ import annotations

from stoppable.records import RunRecord, Selector, StopIntent
from stoppable.stores.postgres.transaction import Transaction
from stoppable.stores.sql import rows, tombstones
from stoppable.stores.sql.requests import StopRequest
from stoppable.stores.sql.tombstones import Address

_TAKE = """DELETE FROM tombstones WHERE address = ANY(%s) AND (owner IS NULL OR owner = %s)
 RETURNING address, owner, expires, stop"""


def wait_for_run(tx: Transaction, run_id: str, request: StopRequest) -> float:
    """Let a stop wait for a run, and return until when."""
    return tombstones.wait_for_run(tx, _run(run_id), run_id, request)


def wait_for_key(tx: Transaction, selector: Selector, request: StopRequest) -> float | None:
    """Let a stop wait for the next run of a key, and return until when."""
    return tombstones.wait_for_key(tx, _key(selector.key), selector, request)


def take(tx: Transaction, record: RunRecord, now: float) -> StopIntent | None:
    """Remove the stops that waited for a run, and return them combined."""
    addresses = [_run(record.id)] if record.key is None else [_run(record.id), _key(record.key)]
    order = [value for _, _, value in addresses]
    waited = tx.all(_TAKE, (order, record.owner))
    waited.sort(key=lambda row: (order.index(row[0]), row[1] is not None))
    return rows.waiting_stop([row[2:] for row in waited], now)


def _run(run_id: str) -> Address:
    return "tombstones", "address", f"run {run_id}"


def _key(key: str | None) -> Address:
    return "tombstones", "address", f"key {rows.encode(key)}"

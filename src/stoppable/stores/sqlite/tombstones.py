"""Stops that arrived before their runs. Those that wait for a run and for a key have a table each."""

from __future__ import annotations

from stoppable.records import RunRecord, Selector, StopIntent
from stoppable.stores.sql import rows, tombstones
from stoppable.stores.sql.requests import StopRequest
from stoppable.stores.sql.rows import Row
from stoppable.stores.sql.tombstones import Address
from stoppable.stores.sqlite.transaction import Transaction


def wait_for_run(tx: Transaction, run_id: str, request: StopRequest) -> float:
    """Let a stop wait for a run, and return until when."""
    return tombstones.wait_for_run(tx, _run(run_id), run_id, request)


def wait_for_key(tx: Transaction, selector: Selector, request: StopRequest) -> float | None:
    """Let a stop wait for the next run of a key, and return until when."""
    return tombstones.wait_for_key(tx, _key(selector.key), selector, request)


def take(tx: Transaction, record: RunRecord, now: float) -> StopIntent | None:
    """Remove the stops that waited for a run, and return them combined."""
    found = _take(tx, _run(record.id), record.owner)
    if record.key is not None:
        found += _take(tx, _key(record.key), record.owner)
    return rows.waiting_stop(found, now)


def _take(tx: Transaction, address: Address, owner: str | None) -> list[Row]:
    table, column, value = address
    gone = f"DELETE FROM {table} WHERE {column} = ? AND (owner IS NULL OR owner = ?) RETURNING owner, expires, stop"  # noqa: S608 - our own names
    waited = tx.all(gone, (value, owner))
    return [row[1:] for row in sorted(waited, key=lambda row: row[0] is not None)]


def _run(run_id: str) -> Address:
    return "tombstones", "run_id", run_id


def _key(key: str | None) -> Address:
    return "key_tombstones", "key", rows.encode(key)

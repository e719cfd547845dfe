"""Records as rows of Postgres, with what the stores in a database share (``stores.sql.rows``)."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from stoppable._core.stop import Receipt
from stoppable.records import EventType, RunRecord
from stoppable.stores.sql import rows
from stoppable.stores.sql.rows import Row

_BEGINNING = """id, name, parent_id, root_id, owner, labels::text, status, worker, epoch, spec, created_at, started_at,
 ended_at, CASE status WHEN 'lost' THEN ended_late END, mode, grace, reason, stop_requested_at, acknowledged,"""

RECORD = f"""{_BEGINNING} coalesce((SELECT outcome FROM outcomes WHERE run = number), outcome), receipt,
 key, coalesce((SELECT input FROM inputs WHERE run = number), input), metadata, last_event, number"""  # noqa: S608 - ours
"""What ``rows.record`` wants of a row of runs."""

SUMMARY = f"{_BEGINNING} outcome, brief, key, NULL, NULL, 0, number"
"""The same for a list: nothing that may be large is read."""

INSERT = f"""INSERT INTO runs ({rows.COLUMNS}, number, brief)
 VALUES (%s, %s, %s, %s, %s, %s, %s, %s::jsonb, {", ".join(["%s"] * 19)})"""  # noqa: S608 - our own names
"""Takes what ``rows.values`` returns, the number, and ``brief``."""

UPDATE = """UPDATE runs SET status = %s, epoch = %s, started_at = %s, ended_at = %s, mode = %s, grace = %s, reason = %s,
 stop_requested_at = %s, acknowledged = %s, outcome = %s, receipt = %s, metadata = %s, brief = %s, last_event = %s,
 is_truncated = %s WHERE number = %s"""
"""Takes what ``rows.ending`` returns, ``brief``, the end of the log, and the number."""


def plain(values: Row) -> Row:
    """Return values without enumerations, which psycopg would write by name."""
    return tuple(value.value if isinstance(value, Enum) else value for value in values)


def brief(receipt: Receipt | None) -> str | None:
    """Return the receipt of a list."""
    return None if receipt is None else rows.encode(replace(receipt, nodes=()))


def brief_of(record: RunRecord) -> str | None:
    """Return the receipt of a record in a list."""
    return brief(record.receipt)


def mark(kind: EventType, data: str) -> str | None:
    """Return what is searched of an event: its boundary, or that it sets a partial."""
    if kind in {EventType.ENTERED, EventType.LEFT}:
        found = rows.decode(data)
        return rows.encode((found.get("kind"), found.get("name")))
    if kind is EventType.PARTIAL:
        return None if "delta" in rows.decode(data) else "set"
    return None

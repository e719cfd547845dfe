"""Records as rows of Postgres; the rest is shared (``stores.sql.rows``)."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from stoppable._core.stop import Receipt
from stoppable.records import EventType, RunRecord
from stoppable.stores.sql import rows
from stoppable.stores.sql.rows import Row

RECORD = rows.record_columns("last_event")
SUMMARY = rows.summary_columns("brief")

INSERT = f"""INSERT INTO runs ({rows.COLUMNS}, number, brief)
 VALUES (%s, %s, %s, %s, %s, %s, %s, %s::jsonb, {", ".join(["%s"] * 19)})"""  # noqa: S608 - our own names
"""Takes what ``rows.values`` returns, the number, and ``brief``."""

UPDATE = """UPDATE runs SET status = %s, epoch = %s, started_at = %s, ended_at = %s, mode = %s, grace = %s, reason = %s,
 stop_requested_at = %s, acknowledged = %s, outcome = %s, receipt = %s, metadata = %s, brief = %s, last_event = %s,
 is_truncated = %s WHERE number = %s"""
"""Takes what ``rows.ending`` returns, ``brief``, the end of the log, and the number."""


def plain(values: Row) -> Row:
    """Return values with enumerations replaced, which psycopg would write by name."""
    return tuple(value.value if isinstance(value, Enum) else value for value in values)


def brief(receipt: Receipt | None) -> str | None:
    """Return a receipt without its nodes, for lists."""
    return None if receipt is None else rows.encode(replace(receipt, nodes=()))


def brief_of(record: RunRecord) -> str | None:
    """Return the receipt of a record without its nodes, for lists."""
    return brief(record.receipt)


def mark(kind: EventType, data: str) -> str | None:
    """Return what queries look for in an event: its boundary, or that it replaces the partial."""
    if kind in {EventType.ENTERED, EventType.LEFT}:
        found = rows.decode(data)
        return rows.encode((found.get("kind"), found.get("name")))
    if kind is EventType.PARTIAL:
        return None if "delta" in rows.decode(data) else "set"
    return None

"""Records as rows of a SQLite file; the rest is shared (``stores.sql.rows``)."""

from __future__ import annotations

from stoppable.stores.sql import rows

RECORD = rows.record_columns("(SELECT coalesce(max(seq), 0) FROM events WHERE run = number)")
SUMMARY = rows.summary_columns("json_replace(receipt, '$.nodes', json_array())")

INSERT = f"INSERT INTO runs ({rows.COLUMNS}) VALUES ({', '.join('?' * 25)}) RETURNING number"  # noqa: S608 - our own names
"""Takes what ``rows.values`` returns."""

UPDATE = (
    "UPDATE runs SET status = ?, epoch = ?, started_at = ?, ended_at = ?, mode = ?, grace = ?, reason = ?,"
    " stop_requested_at = ?, acknowledged = ?, outcome = ?, receipt = ?, metadata = ? WHERE number = ?"
)
"""Takes what ``rows.ending`` returns, and the number."""

"""Deletes runs that ended long ago, with everything that belongs to them."""

from __future__ import annotations

from stoppable.stores.base import KEYS_KEPT
from stoppable.stores.sqlite.transaction import Transaction

_TREE = """
WITH RECURSIVE tree (number, ended_at) AS (
    SELECT number, ended_at FROM runs WHERE number = :root
    UNION ALL
    SELECT runs.number, runs.ended_at FROM runs JOIN tree ON runs.parent = tree.number
)
SELECT json_group_array(number), count(*), coalesce(sum(ended_at < :before), 0) FROM tree
"""


# The last event stays: if its place were used again, readers of all runs would miss the next event.
_FORGET = """
DELETE FROM events WHERE run IN (SELECT value FROM json_each(?)) AND rowid < (SELECT max(rowid) FROM events)
"""


def purge(tx: Transaction, before: float, limit: int) -> int:
    """Delete trees that ended before a time, and old idempotency keys."""
    tx.run("DELETE FROM answered WHERE at < ?", (before - KEYS_KEPT,))
    roots = "SELECT number FROM runs WHERE parent IS NULL AND ended_at IS NOT NULL AND ended_at < ? ORDER BY ended_at"
    forgotten = 0
    for (root,) in tx.all(roots, (before,)):
        if forgotten >= limit:
            break
        row = tx.one(_TREE, {"root": root, "before": before})
        assert row is not None, "an aggregate has one row"
        numbers, size, ended = row
        if size == ended:  # a child may outlive its parent
            tx.run(_FORGET, (numbers,))
            for table in ("outcomes", "inputs"):
                tx.run(f"DELETE FROM {table} WHERE run IN (SELECT value FROM json_each(?))", (numbers,))  # noqa: S608 - ours
            tx.run("DELETE FROM runs WHERE number IN (SELECT value FROM json_each(?))", (numbers,))
            forgotten += size
    return forgotten

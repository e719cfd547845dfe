"""Forgets runs that ended long ago, with all that belongs to them."""

from __future__ import annotations

from stoppable.stores.base import KEYS_KEPT
from stoppable.stores.postgres.transaction import Transaction

_ROOTS = """SELECT number FROM runs WHERE parent IS NULL AND ended_at < %s ORDER BY ended_at LIMIT %s"""
_TREE = """
WITH RECURSIVE tree (number, ended_at) AS (
    SELECT number, ended_at FROM runs WHERE number = %s
    UNION ALL
    SELECT runs.number, runs.ended_at FROM runs JOIN tree ON runs.parent = tree.number
)
SELECT array_agg(number), count(*) - count(*) FILTER (WHERE ended_at < %s) FROM tree
"""
_TABLES = (("events", "run"), ("outcomes", "run"), ("inputs", "run"), ("runs", "number"))


def purge(tx: Transaction, before: float, limit: int) -> int:
    """Forget trees that ended before a time, and later on the keys of stops."""
    tx.run("DELETE FROM answered WHERE at < %s", (before - KEYS_KEPT,))
    tx.run("DELETE FROM followed WHERE expires < %s", (tx.now(),))
    forgotten: list[int] = []
    for (root,) in tx.all(_ROOTS, (before, max(limit, 0) + 1000)):
        if len(forgotten) >= limit:
            break
        numbers, left = tx.all(_TREE, (root, before))[0]
        if left == 0:  # a child may outlive its parent
            forgotten += numbers
    for table, column in _TABLES:
        tx.run(f"DELETE FROM {table} WHERE {column} = ANY(%s)", (forgotten,))  # noqa: S608 - our own names
    return len(forgotten)

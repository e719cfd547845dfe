"""Deletes runs that ended long ago, with everything that belongs to them."""

from __future__ import annotations

import math

from stoppable.stores.base import KEYS_KEPT
from stoppable.stores.postgres.transaction import Transaction

_PAGE = 100
_LOOKED_AT = 1000  # how many trees with live runs one call skips
_ROOTS = """SELECT number, ended_at FROM runs WHERE parent IS NULL AND ended_at < %s AND ended_at >= %s
 AND (ended_at, number) > (%s, %s) ORDER BY ended_at, number LIMIT %s"""
_TREES = """
WITH RECURSIVE tree (root, number, ended_at) AS (
    SELECT number, number, ended_at FROM runs WHERE number = ANY(%s)
    UNION ALL
    SELECT root, runs.number, runs.ended_at FROM runs JOIN tree ON runs.parent = tree.number
)
SELECT root, array_agg(number), bool_and(coalesce(ended_at < %s, false)) FROM tree GROUP BY root
"""
_TABLES = (("events", "run"), ("outcomes", "run"), ("inputs", "run"), ("runs", "number"))


def purge(tx: Transaction, before: float, limit: int) -> int:
    """Delete trees that ended before a time, and old idempotency keys."""
    tx.run("DELETE FROM answered WHERE at < %s", (before - KEYS_KEPT,))
    tx.run("DELETE FROM followed WHERE expires < %s", (tx.now(),))
    forgotten = _old(tx, before, limit)
    for table, column in _TABLES:
        tx.run(f"DELETE FROM {table} WHERE {column} = ANY(%s)", (forgotten,))  # noqa: S608 - our own names
    return len(forgotten)


def _old(tx: Transaction, before: float, limit: int) -> list[int]:
    """Return the numbers of runs in trees that have ended completely, oldest first."""
    found: list[int] = []
    last, looked_at = (-math.inf, 0), 0
    while len(found) < limit and looked_at < limit + _LOOKED_AT:
        roots = tx.all(_ROOTS, (before, last[0], *last, _PAGE))
        if not roots:
            break
        ended = tx.all(_TREES, ([root for root, _ in roots], before))
        trees = {root: numbers for root, numbers, is_old in ended if is_old}
        for root, _ in roots:
            if len(found) < limit:
                found += trees.get(root, ())  # a child may outlive its parent
        last, looked_at = (roots[-1][1], roots[-1][0]), looked_at + len(roots)
    return found

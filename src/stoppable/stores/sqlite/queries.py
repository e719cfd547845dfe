"""Looking: what a reader asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoppable.records import Filter, RunRecord, RunSummary, Summaries
from stoppable.stores import rules
from stoppable.stores.sql import rows
from stoppable.stores.sqlite import runs
from stoppable.stores.sqlite.stops import LABELS
from stoppable.stores.sqlite.transaction import Session

_TREE = f"""
WITH RECURSIVE tree (node) AS (
    SELECT ?
    UNION ALL
    SELECT number FROM runs JOIN tree ON parent = node
)
SELECT {rows.SUMMARY} FROM tree JOIN runs ON number = node ORDER BY number
"""  # noqa: S608 - our own names; a parent has a lower number than its children


def get(session: Session, run_id: str) -> RunRecord:
    """Return a record."""
    return rows.record(runs.row_of(session, run_id))


def query(session: Session, wanted: Filter, cursor: str | None, limit: int) -> Summaries:
    """Return the runs that match, newest first."""
    limit = rules.page_size(limit)
    terms, values = ["number < ?"], [min(rules.cursor_number(cursor), 2**63 - 1)]
    _narrow(wanted, terms, values)
    sql = f"SELECT {rows.SUMMARY} FROM runs WHERE {' AND '.join(terms)} ORDER BY number DESC LIMIT ?"  # noqa: S608 - ours
    found = session.all(sql, (*values, limit + 1))
    more = str(found[limit - 1][-1]) if len(found) > limit else None
    return Summaries(runs=tuple(RunSummary.of(rows.record(row)) for row in found[:limit]), cursor=more)


def _narrow(wanted: Filter, terms: list[str], values: list[Any]) -> None:
    if wanted.status:
        terms.append(f"status IN ({', '.join('?' * len(wanted.status))})")
        values += [status.value for status in wanted.status]
    for column, value in (("owner", wanted.owner), ("name", wanted.name), ("parent_id", wanted.parent_id)):
        if value is not None:
            terms.append(f"{column} = ?")
            values.append(value)
    if wanted.key is not None:
        terms.append("key = ?")
        values.append(rows.encode(wanted.key))
    if wanted.roots:
        terms.append("parent_id IS NULL")
    if wanted.labels:
        terms.append(LABELS)
        values.append(rows.encode(wanted.labels))


def tree(session: Session, run_id: str) -> Sequence[RunSummary]:
    """Return a run and all its descendants."""
    return [RunSummary.of(rows.record(row)) for row in session.all(_TREE, (session.number(run_id),))]


def counts(session: Session) -> Mapping[str, int]:
    """Return how many runs have each status."""
    return dict(session.all("SELECT status, count(*) FROM runs GROUP BY status"))

"""Looking: what a reader asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoppable.records import Filter, RunRecord, RunSummary, Summaries
from stoppable.stores import rules
from stoppable.stores.postgres import runs
from stoppable.stores.postgres.rows import SUMMARY
from stoppable.stores.postgres.stops import LABELS
from stoppable.stores.postgres.transaction import Session
from stoppable.stores.sql import rows

_TREE = f"""
WITH RECURSIVE tree (node) AS (
    SELECT %s::bigint
    UNION ALL
    SELECT number FROM runs JOIN tree ON parent = node
)
SELECT {SUMMARY} FROM tree JOIN runs ON number = node ORDER BY number
"""  # noqa: S608 - our own names; a parent has a lower number than its children


def get(session: Session, run_id: str) -> RunRecord:
    """Return a record."""
    return rows.record(runs.row_of(session, run_id))


def query(session: Session, wanted: Filter, cursor: str | None, limit: int) -> Summaries:
    """Return the runs that match, newest first."""
    limit = rules.page_size(limit)
    terms: list[str] = ["number < %s::bigint"]
    values: list[Any] = [int(min(rules.cursor_number(cursor), 2**63 - 1))]
    _narrow(wanted, terms, values)
    sql = f"SELECT {SUMMARY} FROM runs WHERE {' AND '.join(terms)} ORDER BY number DESC LIMIT %s"  # noqa: S608 - ours
    found = session.all(sql, (*values, limit + 1))
    more = str(found[limit - 1][-1]) if len(found) > limit else None
    return Summaries(runs=tuple(RunSummary.of(rows.record(row)) for row in found[:limit]), cursor=more)


def _narrow(wanted: Filter, terms: list[str], values: list[Any]) -> None:
    if wanted.status:
        terms.append("status = ANY(%s)")
        values.append([status.value for status in wanted.status])
    for column, value in (("owner", wanted.owner), ("name", wanted.name), ("parent_id", wanted.parent_id)):
        if value is not None:
            terms.append(f"{column} = %s")
            values.append(value)
    if wanted.key is not None:
        terms.append("key = %s")
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

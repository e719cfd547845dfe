"""The logs of many runs as one, in the order in which they were committed, and what they say of boundaries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stoppable.records import EventType
from stoppable.stores.arrivals import label
from stoppable.stores.base import READ_BYTES, Tail
from stoppable.stores.postgres.transaction import Session
from stoppable.stores.sql import rows

# No further than so many characters of data, and one event at least.
_TAIL = """
SELECT place, id, seq, at, type, data, before FROM (
    SELECT *, sum(length(data)) OVER (ORDER BY place) - length(data) AS before FROM (
        SELECT place, id, seq, at, type, data FROM events JOIN runs ON number = run
        WHERE place > %s AND place <= %s {} ORDER BY place LIMIT %s
    ) AS part
) AS page ORDER BY place
"""
_BELOW = """AND run IN (
    WITH RECURSIVE tree (node) AS (
        SELECT %s::bigint
        UNION ALL
        SELECT number FROM runs JOIN tree ON parent = node
    )
    SELECT node FROM tree
)"""
_OPEN = """
SELECT id, mark, sum(CASE type WHEN 'entered' THEN 1 ELSE -1 END) AS open
FROM runs JOIN events ON run = number
WHERE id = ANY(%s) AND ended_at IS NULL AND type IN ('entered', 'left')
GROUP BY number, mark HAVING sum(CASE type WHEN 'entered' THEN 1 ELSE -1 END) > 0 ORDER BY number, min(seq)
"""


def tail(session: Session, after: int, limit: int, types: Collection[EventType], below: str | None) -> Tail:
    """Return events of many runs in order."""
    last = session.all("SELECT coalesce(max(place), 0) FROM events")[0][0]
    terms = ""
    values: list[Any] = [max(after, 0), last]
    if types:
        terms += "AND type = ANY(%s) "
        values.append([kind.value for kind in types])
    if below is not None:
        terms += _BELOW
        values.append(session.number(below))
    found = session.all(_TAIL.format(terms), (*values, limit + 1))
    short = [row for row in found[:limit] if row[-1] < READ_BYTES]
    events = tuple((place, rows.event(run_id, tuple(row))) for place, run_id, *row, _ in short)
    if len(short) == len(found):
        return Tail(place=last, events=events)
    return Tail(place=events[-1][0] if events else max(after, 0), events=events, has_more=True)


def in_flight(session: Session, run_ids: Sequence[str], events_kept: int) -> Mapping[str, tuple[str, ...] | None]:  # noqa: ARG001 - the runs know
    """Return the open boundaries of live runs."""
    wanted = list(run_ids)
    live = session.all("SELECT id, is_truncated FROM runs WHERE id = ANY(%s) AND ended_at IS NULL", (wanted,))
    found: dict[str, tuple[str, ...] | None] = {run_id: None if is_truncated else () for run_id, is_truncated in live}
    for run_id, mark, count in session.all(_OPEN, (wanted,)):
        before = found.get(run_id)
        if before is not None:
            found[run_id] = (*before, *[label(*rows.decode(mark))] * int(count))
    return found

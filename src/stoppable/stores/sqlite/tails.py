"""The logs of many runs as one, in the order of the file, and what they say of boundaries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stoppable.records import EventType
from stoppable.stores.arrivals import label
from stoppable.stores.base import READ_BYTES, Tail
from stoppable.stores.sql import rows
from stoppable.stores.sqlite.transaction import Session

_TAIL = """
SELECT events.rowid, id, seq, at, type, data FROM events {} CROSS JOIN runs ON number = run
WHERE events.rowid > ? AND events.rowid <= ? {}
ORDER BY events.rowid LIMIT ?
"""
_BELOW = """AND run IN (
    WITH RECURSIVE tree (node) AS (
        SELECT ?
        UNION ALL
        SELECT number FROM runs JOIN tree ON parent = node
    )
    SELECT node FROM tree
)"""
_OPEN = """
SELECT id, data ->> 'kind' AS kind, data ->> 'name' AS name, sum(CASE type WHEN 'entered' THEN 1 ELSE -1 END) AS open
FROM runs JOIN events ON run = number
WHERE id IN (SELECT value FROM json_each(?)) AND ended_at IS NULL AND type IN ('entered', 'left')
GROUP BY number, kind, name HAVING open > 0 ORDER BY number, min(seq)
"""
_LIVE = """
SELECT id, EXISTS (SELECT 1 FROM events WHERE run = number AND seq > ? AND type = 'truncated')
FROM runs WHERE id IN (SELECT value FROM json_each(?)) AND ended_at IS NULL
"""


def tail(session: Session, after: int, limit: int, types: Collection[EventType], below: str | None) -> Tail:
    """Return events of many runs in order."""
    last = session.all("SELECT coalesce(max(rowid), 0) FROM events")[0][0]
    terms, values = "", [max(after, 0), last]
    if types:
        terms += f"AND type IN ({', '.join('?' * len(types))}) "
        values += types
    if below is not None:
        terms += _BELOW
        values.append(session.number(below))
    # Those of a tree are few among all that came: they are found run by run.
    way = "NOT INDEXED" if below is None else "INDEXED BY events_by_run"
    found, is_all = session.some(_TAIL.format(way, terms), (*values, limit + 1), READ_BYTES)
    events = tuple((place, rows.event(run_id, tuple(row))) for place, run_id, *row in found[:limit])
    if is_all and len(found) <= limit:
        return Tail(place=last, events=events)
    return Tail(place=events[-1][0] if events else max(after, 0), events=events, has_more=True)


def in_flight(session: Session, run_ids: Sequence[str], events_kept: int) -> Mapping[str, tuple[str, ...] | None]:
    """Return the open boundaries of live runs."""
    wanted = rows.encode(list(run_ids))
    found: dict[str, tuple[str, ...] | None] = {
        run_id: None if is_truncated else () for run_id, is_truncated in session.all(_LIVE, (events_kept, wanted))
    }
    for run_id, kind, name, count in session.all(_OPEN, (wanted,)):
        before = found.get(run_id)
        if before is not None:
            found[run_id] = (*before, *[label(kind, name)] * count)
    return found

"""The logs of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoppable._core.state import Status
from stoppable.errors import Fenced, RunNotFound, StoppableError
from stoppable.records import Draft, EventType, RunRecord
from stoppable.stores import rules
from stoppable.stores.postgres.rows import mark
from stoppable.stores.postgres.transaction import Session, Transaction
from stoppable.stores.sql import queries, rows
from stoppable.stores.sql.rows import Lines, Row

_LOCKED = """SELECT id, number, epoch, ended_at IS NULL, last_event, is_truncated, status, started_at, metadata
 FROM runs WHERE id = ANY(%s) ORDER BY number FOR NO KEY UPDATE"""
_INSERT = """INSERT INTO events (run, seq, at, type, mark, data)
 SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::float8[], %s::text[], %s::text[], %s::text[])"""
_LENGTHS = """UPDATE runs SET last_event = ends.last, is_truncated = ends.is_truncated
 FROM unnest(%s::bigint[], %s::bigint[], %s::bool[]) AS ends (number, last, is_truncated)
 WHERE runs.number = ends.number"""
_MOVE = "UPDATE runs SET status = %s, started_at = %s, metadata = %s WHERE number = %s"
_PARTIALS = """SELECT run, data FROM events WHERE run = ANY(%s) AND type = 'partial' AND seq >= coalesce(
 (SELECT max(seq) FROM events AS earlier WHERE earlier.run = events.run AND type = 'partial' AND mark = 'set'), 0)
 ORDER BY run, seq"""
_OPEN = """
SELECT id, mark, sum(CASE type WHEN 'entered' THEN 1 ELSE -1 END) AS open
FROM runs JOIN events ON run = number
WHERE id = ANY(%s) AND ended_at IS NULL AND type IN ('entered', 'left')
GROUP BY number, mark HAVING sum(CASE type WHEN 'entered' THEN 1 ELSE -1 END) > 0 ORDER BY number, min(seq)
"""

_TRUNCATED = Lines([Draft(type=EventType.TRUNCATED)]).rows[0]

Append = tuple[str, int, Lines]
"""The arguments of an append."""


@dataclass(slots=True)
class Log:
    """The log of a locked run: where it ends, and what will be appended to it."""

    number: int
    last: int
    is_truncated: bool
    waiting: list[Row] = field(default_factory=list)

    def add(self, lines: Lines, kept: int, now: float) -> int:
        """Queue lines, as far as a full log still takes them, and return the number of the last event."""
        for at, kind, data in lines.rows:
            if self.last < kept or kind in rules.ALWAYS_KEPT:
                self._add(now if at is None else at, kind, data)
            elif not self.is_truncated:
                self.is_truncated = True
                self._add(now, _TRUNCATED[1], _TRUNCATED[2])
        return self.last

    def _add(self, at: float, kind: EventType, data: str) -> None:
        self.last += 1
        self.waiting.append((self.number, self.last, at, kind.value, mark(kind, data), data))


def write(tx: Transaction, logs: Iterable[Log]) -> None:
    """Write the queued lines of logs; the caller stores where the logs end."""
    waiting = [row for log in logs for row in log.waiting]
    if waiting:
        tx.in_order()
        tx.run(_INSERT, [list(column) for column in zip(*waiting, strict=True)])


def append(tx: Transaction, run_id: str, epoch: int, lines: Lines) -> int:
    """Append to a run's log."""
    (answer,) = append_all(tx, [(run_id, epoch, lines)])
    if isinstance(answer, StoppableError):
        raise answer
    return answer


def append_all(tx: Transaction, calls: Sequence[Append]) -> list[int | StoppableError]:
    """Append to the logs of runs, and return the result or error of each call."""
    locked = {row[0]: row for row in tx.all(_LOCKED, ([run_id for run_id, _, _ in calls],))}
    logs: dict[str, Log] = {run_id: Log(row[1], row[4], row[5]) for run_id, row in locked.items()}
    records: dict[str, RunRecord] = {}
    answers: list[int | StoppableError] = []
    for run_id, epoch, lines in calls:
        try:
            row = _admitted(locked.get(run_id), run_id, epoch)
            if lines.moves:
                rules.check_statuses(lines.moves)
                records[run_id] = rules.moved_by(records.get(run_id) or _record(row), lines.moves, tx.now())
        except StoppableError as error:
            answers.append(error)
            continue
        answers.append(logs[run_id].add(lines, tx.events_kept, tx.now()))
        tx.touch(run_id)
    longer = [log for log in logs.values() if log.waiting]
    for run_id, record in records.items():
        facts = rows.encode(record.metadata) if record.metadata else None
        tx.run(_MOVE, (record.status.value, record.started_at, facts, logs[run_id].number))
    if longer:
        tx.run(
            _LENGTHS,
            ([log.number for log in longer], [log.last for log in longer], [log.is_truncated for log in longer]),
        )
    write(tx, longer)
    return answers


def _admitted(row: Row | None, run_id: str, epoch: int) -> Row:
    if row is None:
        raise RunNotFound(run_id)
    if row[2] != epoch or not row[3]:
        raise Fenced(run_id)
    return row


def _record(row: Row) -> RunRecord:
    """Return the part of a record that an event can change."""
    status, started_at, facts = row[6:]
    metadata = {} if facts is None else rows.decode(facts)
    return RunRecord(id=row[0], name="", status=Status(status), started_at=started_at, metadata=metadata)


def in_flight(session: Session, run_ids: Sequence[str], events_kept: int) -> Mapping[str, tuple[str, ...] | None]:  # noqa: ARG001 - the row of a run says whether its log is truncated
    """Return the open boundaries of live runs."""
    wanted = list(run_ids)
    live = session.all("SELECT id, is_truncated FROM runs WHERE id = ANY(%s) AND ended_at IS NULL", (wanted,))
    counted = [(run_id, *rows.decode(mark), count) for run_id, mark, count in session.all(_OPEN, (wanted,))]
    return queries.open_boundaries(live, counted)


def partials(session: Session, numbers: Sequence[int]) -> Mapping[int, list[Mapping[str, Any]]]:
    """Return the data of the partial events of runs, from the last one that replaced the partial."""
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for number, data in session.all(_PARTIALS, (list(numbers),)):
        found[number].append(rows.decode(data))
    return found

"""Runs, agents, holds and the audit as tables."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stoppable.cli import show
from stoppable.cli.columns import Column, FittedTable
from stoppable.cli.countdown import with_those_below
from stoppable.cli.text import first, plain
from stoppable.records import AuditEntry, Hold, RunSummary, Selector

if TYPE_CHECKING:
    from stoppable.client import AgentInfo

_RUNS = (
    Column(name="RUN", cut=True),
    Column(name="AGENT", least=10, most=24, cut=True),
    Column(name="OWNER", least=8, most=16, cut=True, rank=4),
    Column(name="STATUS", breaks=r" (?=\()"),
    Column(name="STARTED", cut=True, rank=3),
    Column(name="TIME", cut=True, right=True, rank=1),
    Column(name="WHAT", least=12, good=30, cut=True, rank=2),
)
_FULL_RUNS = tuple(Column(name=one.name, least=24 if one.name == "WHAT" else 0, right=one.right) for one in _RUNS)
_AGENTS = (Column(name="AGENT", least=24), Column(name="TAKES", least=16), Column(name="WHAT IT DOES", least=20))
_HOLDS = (
    Column(name="HOLD", cut=True),
    Column(name="REFUSES", least=16),
    Column(name="SINCE"),
    Column(name="REASON", least=12),
)
_AUDIT = (
    Column(name="TIME"),
    Column(name="ACTION"),
    Column(name="ACTOR", least=12),
    Column(name="TARGET", least=16),
    Column(name="RESULT", least=12),
    Column(name="REASON", least=12),
)


def started(at: float, now: float) -> str:
    """Return when a run was started: the time of day, and the date if that was not today."""
    then, today = (dt.datetime.fromtimestamp(moment).astimezone() for moment in (at, now))
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%d %b %H:%M")


def runs(records: Iterable[RunSummary], now: float, *, full: bool = False) -> FittedTable:
    """Return a table of runs; a full one has every column, and nothing in it is cut."""
    listed = list(records)
    known = with_those_below(listed)
    rows = [
        (
            plain(record.id if full else show.short(record.id)),
            plain("  " * (depth - 1) + "└ " * bool(depth) + record.name),
            plain(record.owner or "-"),
            show.status(record.status, record.ended_late),
            plain(started(record.created_at, now)),
            plain(show.age(record, now)),
            plain(_what(known[record.id], now, full=full)),
        )
        for record, depth in below_parents(listed)
    ]
    return FittedTable(_FULL_RUNS if full else _RUNS, rows)


def _what(record: RunSummary, now: float, *, full: bool) -> str:
    told = show.what(record, now)
    return told if full else first(told)


def below_parents(records: Iterable[RunSummary]) -> Iterator[tuple[RunSummary, int]]:
    """Yield runs as they come, except that children follow their parent, oldest first, each with its depth.

    A child whose parent is not among them, because a limit or filter left it out, is still drawn as a child.
    """
    given = list(records)
    known = {record.id for record in given}
    children: dict[str, list[RunSummary]] = {}
    for record in reversed(given):
        children.setdefault(record.parent_id or "", []).append(record)
    waiting = [
        (record, int(record.parent_id is not None)) for record in reversed(given) if record.parent_id not in known
    ]
    while waiting:
        record, depth = waiting.pop()
        yield record, depth
        waiting += [(child, depth + 1) for child in reversed(children.get(record.id, []))]


def agents(found: Iterable[AgentInfo]) -> FittedTable:
    """Return a table of agents."""
    rows = [(plain(one.name), plain(_takes(one.input) or "-"), plain(first(one.description))) for one in found]
    return FittedTable(_AGENTS, rows)


def _takes(schema: Mapping[str, Any]) -> str:
    """Return what an agent takes, from the schema of its input: ``topic: string, rounds: integer = 3``."""
    needed = schema.get("required") or ()
    return ", ".join(_parameter(name, one, name in needed) for name, one in (schema.get("properties") or {}).items())


def _parameter(name: str, schema: Any, is_needed: bool) -> str:  # noqa: FBT001 - private
    known = schema if isinstance(schema, Mapping) else {}
    kind = f": {known['type']}" if isinstance(known.get("type"), str) else ""
    if is_needed:
        return f"{name}{kind}"
    return f"{name}{kind} = {known['default']!r}" if "default" in known else f"[{name}{kind}]"


def holds(found: Iterable[Hold]) -> FittedTable:
    """Return a table of holds."""
    rows = [
        (
            plain(hold.id),
            plain(selector(hold.selector)),
            plain(_date(hold.created_at)),
            plain(first(hold.reason or "-")),
        )
        for hold in found
    ]
    return FittedTable(_HOLDS, rows)


def _date(at: float) -> str:
    return dt.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def audit(found: Iterable[AuditEntry]) -> FittedTable:
    """Return a table of who did what."""
    rows = []
    for entry in found:
        action = f"stop {entry.target.get('mode')}" if entry.action == "stop" else entry.action
        told = (_date(entry.at), action, entry.actor or "-", _target(entry), _result(entry), entry.reason)
        rows.append([plain(first(one)) for one in told])
    return FittedTable(_AUDIT, rows)


def _target(entry: AuditEntry) -> str:
    chosen = entry.target.get("selector")
    if chosen is None:
        return f"run {show.short(entry.target['run'])}"
    return selector(Selector(owner=chosen["owner"], labels=chosen["labels"], name=chosen["agent"], all=True))


def _result(entry: AuditEntry) -> str:
    answers = Counter(entry.result.get("runs", {}).values())
    told = [
        show.words(answer) if "run" in entry.target else f"{count} {show.words(answer)}"
        for answer, count in answers.items()
    ]
    if entry.result.get("hold"):
        told.append(f"hold {entry.result['hold']}")
    return ", ".join(told) or "no run"


def selector(value: Selector) -> str:
    """Return the runs that a selector selects, in words."""
    parts = [f"owner {value.owner}"] if value.owner is not None else []
    parts += [f"label {key}:{item}" for key, item in value.labels.items()]
    parts += [f"agent {value.name}"] if value.name is not None else []
    return ", ".join(parts) or "every run"

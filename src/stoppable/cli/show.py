"""Runs, trees, receipts, holds and the audit as people read them."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from stoppable._core.state import Fate, Mode, Rung, Status
from stoppable._core.stop import Receipt
from stoppable.cli.text import first, plain, safe, value_text
from stoppable.records import AuditEntry, Hold, RunRecord, RunSummary, Selector

if TYPE_CHECKING:
    from rich.tree import Tree

    from stoppable.client import AgentInfo

_STYLES = {
    Status.PENDING: "dim",
    Status.RUNNING: "cyan",
    Status.STOPPING: "yellow",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.STOPPED: "bright_black",
    Status.LOST: "magenta",
}
_MARKS = {
    Status.PENDING: "○",
    Status.RUNNING: "●",
    Status.STOPPING: "◐",
    Status.COMPLETED: "✓",
    Status.FAILED: "✗",
    Status.STOPPED: "■",
    Status.LOST: "?",
}
_FATES: Mapping[Fate | Status, str] = {
    Fate.FINISHED: "green",
    Fate.CLOSED: "green",
    Fate.KILLED: "red",
    Fate.ABANDONED: "magenta",
    Fate.UNREACHABLE: "magenta",
    Status.COMPLETED: "green",
    Status.STOPPED: "green",
    Status.FAILED: "red",
    Status.LOST: "magenta",
}
_FORCE = {
    Rung.INTERRUPT: "interrupted",
    Rung.CANCEL: "cancelled",
    Rung.KILL: "killed",
    Rung.LOST: "given up on",
}
_CLEAN_UP = {True: "ran to its end", False: "did not run to its end", None: "not known whether it ran to its end"}
_COLUMNS = {"RUN": 128, "AGENT": 24, "OWNER": 16, "STATUS": 20, "STARTED": 12, "TIME": 8, "WHAT": 0}
"""Of a table of runs, with the width that each may have; the last one has what is left."""
_OURS = re.compile(r"[0-9a-f]{32}")
_SHORT = 12
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def short(run_id: str) -> str:
    """Return an id as it is shown and understood: the beginning of one of ours, the whole of one of yours."""
    return run_id[:_SHORT] if _OURS.fullmatch(run_id) else safe(run_id)


def status(value: Status, ended_late: float | None = None) -> Text:
    """Return a status with its colour; one that is lost is unconfirmed until it is seen to end after all."""
    text = f"{_MARKS[value]} {value}"
    if value is Status.LOST:
        text += " (unconfirmed)" if ended_late is None else " (ended later)"
    return Text(text, style=_STYLES[value])


def duration(seconds: float) -> str:
    """Return a time span in the unit that fits."""
    if seconds < _MINUTE:
        return f"{seconds:.1f}s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)}m{int(seconds % _MINUTE):02d}s"
    if seconds < _DAY:
        return f"{int(seconds // _HOUR)}h{int(seconds % _HOUR // _MINUTE):02d}m"
    return f"{int(seconds // _DAY)}d{int(seconds % _DAY // _HOUR)}h"


def age(record: RunRecord | RunSummary, now: float) -> str:
    """Return how long a run has lasted."""
    return duration(max(0.0, (record.ended_at or now) - record.created_at))


def started(at: float, now: float) -> str:
    """Return when a run was started: the time of day, and the date if that was not today."""
    then, today = (dt.datetime.fromtimestamp(moment).astimezone() for moment in (at, now))
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%d %b %H:%M")


def what(record: RunSummary) -> str:
    """Return the most telling thing about a run in a few words."""
    if record.error is not None:
        return first(record.error)
    if record.mode is not None:
        told = f"{record.mode}: {first(record.reason)}"
        return f"{told}; in flight: {', '.join(record.in_flight)}" if record.in_flight else told
    facts = [f"{key}:{value}" for key, value in record.labels.items()]
    if record.in_flight:
        facts.append(f"in flight: {', '.join(record.in_flight)}")
    return ", ".join(facts)


def runs(records: Iterable[RunSummary], now: float) -> Table:
    """Return a table of runs."""
    rows = [
        (
            plain(short(record.id)),
            plain("  " * (depth - 1) + "└ " * bool(depth) + record.name),
            plain(record.owner or "-"),
            status(record.status, record.ended_late),
            plain(started(record.created_at, now)),
            plain(age(record, now)),
            plain(first(what(record))),
        )
        for record, depth in below_parents(records)
    ]
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for number, (name, widest) in enumerate(_COLUMNS.items()):
        needed = max([len(name), *(row[number].cell_len for row in rows)])
        justify: JustifyMethod = "right" if name == "TIME" else "left"
        # Where there is no room for all of it, rich takes it from the last column, then from all but the first.
        table.add_column(
            name,
            no_wrap=bool(widest),
            min_width=needed if name == "RUN" else len(name),
            max_width=min(needed, widest) or None,
            justify=justify,
        )
    for row in rows:
        row[-1].no_wrap = True
        for cell in row:
            cell.overflow = "ellipsis"
        table.add_row(*row)
    return table


def below_parents(records: Iterable[RunSummary]) -> Iterator[tuple[RunSummary, int]]:
    """Yield runs as they come, except that children follow their parent, oldest first, each with its depth."""
    given = list(records)
    known = {record.id for record in given}
    children: dict[str, list[RunSummary]] = {}
    for record in reversed(given):
        children.setdefault(record.parent_id or "", []).append(record)
    waiting = [(record, 0) for record in reversed(given) if record.parent_id not in known]
    while waiting:
        record, depth = waiting.pop()
        yield record, depth
        waiting += [(child, depth + 1) for child in reversed(children.get(record.id, []))]


def tree(records: Sequence[RunSummary], now: float) -> Tree:
    """Return a run with its descendants."""
    from rich.tree import Tree  # noqa: PLC0415 - only here

    nodes: dict[str, Tree] = {}
    for record in records:
        label = Text.assemble(plain(record.name, "bold"), "  ", plain(short(record.id), "dim"), "  ")
        label.append_text(status(record.status, record.ended_late))
        label.append(f"  {age(record, now)}", style="dim")
        about = what(record) if record.mode or record.over else ""
        if about:
            label.append(f"  {first(about, 60)}", style="dim")
        parent = nodes.get(record.parent_id or "")
        nodes[record.id] = Tree(label, guide_style="dim") if parent is None else parent.add(label)
    return nodes[records[0].id]


def receipt(
    found: Receipt, record: RunRecord | None = None, name: str | None = None, *, with_output: bool = True
) -> RenderableType:
    """Return the honest answer to a stop, with what the run had by then unless that is shown elsewhere."""
    title = Text.assemble(
        plain(name or (record.name if record else "run"), "bold"), "  ", plain(short(found.run_id), "dim"), "  "
    )
    title.append_text(status(found.status, found.ended_late))
    if found.mode is None:
        title.append("  nobody stopped it", style="dim")
        return title
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(width=1)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    before = ""
    for name, value in _facts(found, record, with_output=with_output):
        facts.add_row("", "" if name == before else name, value)
        before = name
    return Group(title, facts)


def _facts(found: Receipt, record: RunRecord | None, *, with_output: bool) -> Iterable[tuple[str, Text]]:
    outcome = record.outcome if record is not None else None
    how = f"{found.mode}" + (f", highest rung {outcome.rung}" if outcome is not None and outcome.rung else "")
    yield "stop", plain(how if found.answer == "accepted" else f"{found.answer}: {how}")
    if found.reason is not None:
        yield "reason", plain(first(found.reason))
    yield "times", plain(_times(found))
    if found.blind:
        yield "note", Text(never_looked(found))
    if found.in_flight:
        yield "in flight", plain(", ".join(found.in_flight))
    for node in found.nodes:
        told = plain(f"{node.kind} {node.name} ")
        told.append(str(node.fate), style=_FATES.get(node.fate, "yellow"))
        yield "fate", told
    if found.entered_after:
        yield "after it", plain(", ".join(found.entered_after))
    if found.library_threads:
        yield "beside it", plain(f"library threads, not part of the run: {', '.join(found.library_threads)}")
    if found.too_late:
        yield "too late", Text("it finished by itself before it heard of the stop")
    if outcome is not None:
        yield "clean-up", Text(_CLEAN_UP[outcome.clean])
        if with_output:
            yield from _ending(outcome.partial, outcome.result)


def countdown(found: Receipt, now: float) -> str:
    """Say why a stopping run is not over, and when force comes next: ``waits for llm:plan; cancelled in 8 s``."""
    if found.blind:
        why = "this run never looked"
    else:
        why = f"waits for {', '.join(found.in_flight)}" if found.in_flight else "nothing in flight"
    since = now - (found.requested_at or now)
    step = next((step for step in found.ladder if step.after > since and step.rung in _FORCE), None)
    return why if step is None else f"{why}; {_FORCE[step.rung]} in {math.ceil(step.after - since)} s"


def never_looked(found: Receipt) -> str:
    """Say that a run cannot obey, and when it is cancelled."""
    cancelled = next((step.after for step in found.ladder if step.rung is Rung.CANCEL), None)
    return "this run never looked" + ("" if cancelled is None else f"; cancelled in {cancelled:.3g} s")


def _ending(partial: object, result: object) -> Iterable[tuple[str, Text]]:
    for name, kept in (("partial", partial), ("result", result)):
        if kept is not None:
            yield name, plain(excerpt(value_text(kept)))


def excerpt(text: str, lines: int = 6, width: int = 400) -> str:
    """Return the end of a text, and how much was left out."""
    kept = text.strip("\n")[-width:].split("\n")[-lines:]
    shown = "\n".join(kept)
    left_out = len(text.strip("\n")) - len(shown)
    return f"… ({left_out} characters before)\n{shown}" if left_out > 0 else shown


def _times(found: Receipt) -> str:
    if found.requested_at is None:
        return "not yet requested"
    at = dt.datetime.fromtimestamp(found.requested_at).astimezone().strftime("%H:%M:%S")
    later = {
        "acknowledged": found.acknowledged_at,
        "delivered": found.delivered_at,
        "ended": found.ended_at,
        "ended after all": found.ended_late,
    }
    steps = [f"{name} +{max(0.0, when - found.requested_at):.3f}s" for name, when in later.items() if when is not None]
    return " · ".join([f"requested {at}", *steps])


def agents(found: Iterable[AgentInfo]) -> Table:
    """Return a table of agents."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("AGENT", no_wrap=True, overflow="fold")
    for name in ("TAKES", "WHAT IT DOES"):
        table.add_column(name, overflow="fold")
    for one in found:
        table.add_row(plain(one.name), plain(_takes(one.input) or "-"), plain(first(one.description)))
    return table


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


def holds(found: Iterable[Hold]) -> Table:
    """Return a table of holds."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("HOLD", no_wrap=True, overflow="fold")
    for name in ("REFUSES", "SINCE", "REASON"):
        table.add_column(name, overflow="fold")
    for hold in found:
        since = _date(hold.created_at)
        table.add_row(plain(hold.id), plain(selector(hold.selector)), since, plain(first(hold.reason)))
    return table


def _date(at: float) -> str:
    return dt.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def audit(found: Iterable[AuditEntry]) -> Table:
    """Return a table of who did what."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in ("TIME", "ACTION", "ACTOR"):
        table.add_column(name, no_wrap=True)
    for name in ("TARGET", "RESULT", "REASON"):
        table.add_column(name, overflow="fold")
    for entry in found:
        action = f"stop {entry.target.get('mode')}" if entry.action == "stop" else entry.action
        told = (action, entry.actor or "-", _target(entry), _result(entry), entry.reason)
        table.add_row(_date(entry.at), *(plain(first(one)) for one in told))
    return table


def _target(entry: AuditEntry) -> str:
    chosen = entry.target.get("selector")
    if chosen is None:
        return f"run {short(entry.target['run'])}"
    return selector(Selector(owner=chosen["owner"], labels=chosen["labels"], name=chosen["agent"], all=True))


def _result(entry: AuditEntry) -> str:
    answers = Counter(entry.result.get("runs", {}).values())
    told = [answer if "run" in entry.target else f"{count} {answer}" for answer, count in answers.items()]
    if entry.result.get("hold"):
        told.append(f"hold {entry.result['hold']}")
    return ", ".join(told) or "no run"


def selector(value: Selector) -> str:
    """Return whom a selector means."""
    parts = [f"owner {value.owner}"] if value.owner is not None else []
    parts += [f"label {key}:{item}" for key, item in value.labels.items()]
    parts += [f"agent {value.name}"] if value.name is not None else []
    return ", ".join(parts) or "every run"


def next_mode(mode: Mode | None) -> Mode | None:
    """Return the mode that pressing again means: graceful, then immediate, then kill, then none."""
    if mode is None:
        return Mode.GRACEFUL
    return {Mode.COOPERATIVE: Mode.GRACEFUL, Mode.GRACEFUL: Mode.IMMEDIATE, Mode.IMMEDIATE: Mode.KILL}.get(mode)

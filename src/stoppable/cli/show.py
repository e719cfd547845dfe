"""Statuses, times, trees and receipts as people read them."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoppable._core.state import Fate, Mode, Rung, Status
from stoppable._core.stop import Answer, Receipt
from stoppable.cli.countdown import NEVER_LOOKED, Countdown, counted
from stoppable.cli.text import first, plain, safe, value_text
from stoppable.records import RunRecord, RunSummary

if TYPE_CHECKING:
    from rich.tree import Tree

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
_CLEAN_UP = {True: "ran to its end", False: "did not run to its end", None: "not known whether it ran to its end"}
_OURS = re.compile(r"[0-9a-f]{32}")
_SHORT = 12
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
FULL_HINT = ": --full shows them"


def short(run_id: str) -> str:
    """Return an id as commands print and accept it: the first characters of one that we made, all of one of yours."""
    return run_id[:_SHORT] if _OURS.fullmatch(run_id) else safe(run_id)


def status(value: Status, ended_late: float | None = None) -> Text:
    """Return a status with its colour; one that is lost may be seen to end after all."""
    text = f"{_MARKS[value]} {value}"
    if ended_late is not None:
        text += " (ended later)"
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


def words(answer: Answer | str) -> str:
    """Return an answer of the API in words: ``already finished``."""
    return str(answer).replace("_", " ")


def age(record: RunRecord | RunSummary, now: float) -> str:
    """Return how long a run has lasted."""
    return duration(max(0.0, (record.ended_at or now) - record.created_at))


def what(record: RunSummary, now: float) -> str:
    """Return the most telling thing about a run in a few words, and that first: a table may cut the end."""
    if record.error is not None:
        return record.error
    if record.mode is not None:
        told = f"{record.reason}, {record.mode}"
        return told if record.over else f"{Countdown.of_summary(record).brief(now)}; {told}"
    in_flight = [f"{counted(record.in_flight)} in flight"] if record.in_flight else []
    return "; ".join([*in_flight, *(f"{key}:{value}" for key, value in record.labels.items())])


def tree(runs: Mapping[str, RunSummary], now: float) -> Tree:
    """Return a run with its descendants; it is the first of them."""
    from rich.tree import Tree  # noqa: PLC0415 - only here

    nodes: dict[str, Tree] = {}
    for record in runs.values():
        label = Text.assemble(plain(record.name, "bold"), "  ", plain(short(record.id), "dim"), "  ")
        label.append_text(status(record.status, record.ended_late))
        label.append(f"  {age(record, now)}", style="dim")
        about = what(record, now)
        if about:
            label.append(f"  {first(about, 60)}", style="dim")
        parent = nodes.get(record.parent_id or "")
        nodes[record.id] = Tree(label, guide_style="dim") if parent is None else parent.add(label)
    return nodes[next(iter(runs))]


def receipt(
    found: Receipt,
    record: RunRecord | None = None,
    name: str | None = None,
    *,
    with_output: bool = True,
    full: bool | None = None,
) -> RenderableType:
    """Return a receipt, with the output of the run unless that is shown elsewhere.

    A long output is cut to its end, unless ``full`` is true; None is for commands that have no such option.
    """
    title = Text.assemble(
        plain(name or (record.name if record else "run"), "bold"), "  ", plain(short(found.run_id), "dim"), "  "
    )
    title.append_text(status(found.status, found.ended_late))
    if found.mode is None:
        title.append("  it had already ended", style="dim")
        return title
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(width=1)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    before = ""
    for name, value in _facts(found, record, with_output=with_output, full=full):
        facts.add_row("", "" if name == before else name, value)
        before = name
    return Group(title, facts)


def _facts(
    found: Receipt, record: RunRecord | None, *, with_output: bool, full: bool | None
) -> Iterable[tuple[str, Text]]:
    outcome = record.outcome if record is not None else None
    how = f"{found.mode}" + (f", highest rung {outcome.rung}" if outcome is not None and outcome.rung else "")
    yield "stop", plain(how if found.answer is Answer.ACCEPTED else f"{words(found.answer)}: {how}")
    if found.reason is not None:
        yield "reason", plain(found.reason if full else first(found.reason))
    yield "times", plain(_times(found))
    if found.blind:
        yield "note", Text(_never_looked(found))
    if found.in_flight:
        yield "in flight", plain(counted(found.in_flight))
    for (kind, name, fate), count in Counter((node.kind, node.name, node.fate) for node in found.nodes).items():
        told = plain(f"{kind} {name} ")
        told.append(str(fate), style=_FATES.get(fate, "yellow"))
        yield "fate", told if count == 1 else told.append(f" ×{count}")
    if found.entered_after:
        yield "after it", plain(counted(found.entered_after))
    yield from _unseen(found)
    if found.too_late:
        yield "too late", Text("it finished before it noticed the stop")
    if outcome is not None:
        yield "clean-up", Text(_CLEAN_UP[outcome.clean])
        if with_output:
            yield from _output(outcome.partial, outcome.result, full=full)


def _unseen(found: Receipt) -> Iterable[tuple[str, Text]]:
    """Yield what the stop did not reach."""
    if found.library_threads:
        yield "beside it", plain(f"library threads, not part of the run: {', '.join(found.library_threads)}")
    for connection in found.unguarded:
        yield "unguarded", plain(f"connection outside any boundary: {connection}")


def _never_looked(found: Receipt) -> str:
    """Say why a run was given less time than the grace, and when it is or was cancelled."""
    cancelled = next((step.after for step in found.ladder if step.rung is Rung.CANCEL), None)
    if cancelled is None:
        return NEVER_LOOKED
    return f"{NEVER_LOOKED}: cancelled {'after' if found.status.terminal else 'in'} {cancelled:.3g} s"


def _output(partial: object, result: object, *, full: bool | None) -> Iterable[tuple[str, Text]]:
    hint = "" if full is None else FULL_HINT
    for name, kept in (("partial", partial), ("result", result)):
        if kept is not None:
            text = value_text(kept)
            yield name, plain(text if full else excerpt(text, hint=hint))


def excerpt(text: str, lines: int = 6, width: int = 400, *, hint: str = "") -> str:
    """Return the end of a text, and how much was left out."""
    kept = text.strip("\n")[-width:].split("\n")[-lines:]
    shown = "\n".join(kept)
    left_out = len(text.strip("\n")) - len(shown)
    return f"… ({left_out} characters before{hint})\n{shown}" if left_out > 0 else shown


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


def next_mode(mode: Mode | None) -> Mode | None:
    """Return the mode that pressing again means: graceful, then immediate, then kill, then none."""
    if mode is None:
        return Mode.GRACEFUL
    return {Mode.COOPERATIVE: Mode.GRACEFUL, Mode.GRACEFUL: Mode.IMMEDIATE, Mode.IMMEDIATE: Mode.KILL}.get(mode)

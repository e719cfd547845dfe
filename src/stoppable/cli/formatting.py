"""How commands show things: statuses, times, trees, receipts, all about one run, and why a stop is not over yet."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Fate, Mode, Rung, Status
from stoppable.cli.text import one_line, plain, safe, value_text
from stoppable.records import Climb, ErrorRecord, RunRecord, RunSummary

if TYPE_CHECKING:
    from rich.tree import Tree

    from stoppable.cli.options import Connected


_FORCE = {
    Rung.INTERRUPT: "interrupted",
    Rung.CANCEL: "cancelled",
    Rung.KILL: "killed",
    Rung.LOST: "given up on",
}

NEVER_LOOKED = "it has met no boundary or check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Countdown:
    """A stop that is not over: what the run waits for, and the next step of the ladder."""

    mode: Mode | None
    in_flight: Sequence[str] | None
    """None if that is not known."""
    ladder: Sequence[Climb]
    is_blind: bool = False
    """Whether the run has met no boundary or check, so that it gets less time."""

    @classmethod
    def of_receipt(cls, receipt: Receipt, in_flight: Sequence[str] | None) -> Countdown:
        """Make one from a receipt, and what is in flight now; the receipt lists what was when the stop came."""
        began = receipt.requested_at or 0.0
        ladder = [Climb(rung=step.rung, at=began + step.after) for step in receipt.ladder]
        return cls(mode=receipt.mode, in_flight=in_flight, ladder=ladder, is_blind=receipt.blind)

    @classmethod
    def of_summary(cls, run: RunSummary) -> Countdown:
        """Make one from a run in a list."""
        return cls(mode=run.mode, in_flight=run.in_flight, ladder=run.ladder)

    def describe(self, now: float) -> str:
        """Return it in words: ``llm:gpt in flight: waiting up to 8 s for its answer``."""
        return ": ".join(part for part in (self._why(), self._then(now)) if part)

    def describe_briefly(self, now: float) -> str:
        """Return it with the time first, because a table may cut the end: ``cancelled in 8 s: nothing in flight``."""
        return ": ".join(part for part in (self._then(now, brief=True), self._why()) if part)

    def _then(self, now: float, *, brief: bool = False) -> str:
        if self.mode is Mode.COOPERATIVE:
            return "waiting as long as it takes"
        if not self.ladder:
            return "its worker has not seen the stop yet"
        steps = [step for step in self.ladder if step.at > now and (self.in_flight or step.rung is not Rung.INTERRUPT)]
        if not steps:
            return ""
        step = min(steps, key=lambda step: step.at)
        seconds = math.ceil(step.at - now)
        if step.rung is Rung.INTERRUPT:
            return f"waiting up to {seconds} s" + ("" if brief else f" for {_ending(self.in_flight or ())}")
        return f"{_FORCE[step.rung]} in {seconds} s"

    def _why(self) -> str:
        if self.in_flight:
            return f"{count_labels(self.in_flight)} in flight"
        if self.is_blind:
            return NEVER_LOOKED
        return "nothing in flight" if self.in_flight is not None else "not known what is in flight"


def _ending(in_flight: Sequence[str]) -> str:
    if all(label.partition(":")[0] == "llm" for label in in_flight):
        return "its answer" if len(in_flight) == 1 else "their answers"
    return "it to finish" if len(in_flight) == 1 else "them to finish"


def count_labels(labels: Iterable[str]) -> str:
    """Return labels, each once: ``llm:gpt ×3, tool:search``."""
    return ", ".join(label if count == 1 else f"{label} ×{count}" for label, count in Counter(labels).items())


def tree_of(client: Connected, run_id: str) -> dict[str, RunSummary]:
    """Return a run and all its descendants by id, each with what is in flight in it and below it at this moment."""
    return with_subtrees(client.tree(run_id))


def with_subtrees(runs: Iterable[RunSummary]) -> dict[str, RunSummary]:
    """Return runs by id, each with what is in flight in it and in the others of them that are below it."""
    by_id = {run.id: run for run in runs}
    open_in: dict[str, list[str] | None] = {run_id: [] for run_id in by_id}
    for run in by_id.values():
        above: RunSummary | None = run
        while above is not None:
            labels = open_in[above.id]
            if run.in_flight is None:
                open_in[above.id] = None
            elif labels is not None:
                labels.extend(run.in_flight)
            above = by_id.get(above.parent_id or "")
    return {run_id: replace(run, in_flight=_as_tuple(open_in[run_id])) for run_id, run in by_id.items()}


def _as_tuple(labels: list[str] | None) -> tuple[str, ...] | None:
    return None if labels is None else tuple(labels)


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
    Fate.TOLD: "yellow",
    Fate.ABANDONED: "magenta",
    Fate.UNREACHABLE: "magenta",
    Status.COMPLETED: "green",
    Status.STOPPED: "green",
    Status.FAILED: "red",
    Status.LOST: "magenta",
}
_FATE_TEXTS: Mapping[Fate | Status, str] = {Fate.TOLD: "told to stop; it does not say whether it did"}
_CLEAN_UP = {True: "ran to its end", False: "did not run to its end", None: "not known whether it ran to its end"}
_OURS = re.compile(r"[0-9a-f]{32}")
_SHORT = 12
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
FULL_HINT = ": --full shows them"


def short_id(run_id: str) -> str:
    """Return an id as commands print and accept it: the first characters of one that we made, all of one of yours."""
    return run_id[:_SHORT] if _OURS.fullmatch(run_id) else safe(run_id)


def render_status(value: Status, ended_late: float | None = None) -> Text:
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


def in_words(answer: Answer | str) -> str:
    """Return an answer of the API in words: ``already finished``."""
    return str(answer).replace("_", " ")


def age(record: RunRecord | RunSummary, now: float) -> str:
    """Return how long a run has lasted."""
    return duration(max(0.0, (record.ended_at or now) - record.created_at))


def headline(record: RunSummary, now: float) -> str:
    """Return the most telling thing about a run in a few words, and that first: a table may cut the end."""
    if record.error is not None:
        return record.error
    if record.mode is not None:
        stop = f"{record.reason}, {record.mode}"
        return stop if record.over else f"{Countdown.of_summary(record).describe_briefly(now)}; {stop}"
    in_flight = [f"{count_labels(record.in_flight)} in flight"] if record.in_flight else []
    return "; ".join([*in_flight, *(f"{key}:{value}" for key, value in record.labels.items())])


def render_tree(runs: Mapping[str, RunSummary], now: float) -> Tree:
    """Return a run with its descendants; it is the first of them."""
    from rich.tree import Tree  # noqa: PLC0415 - only here

    nodes: dict[str, Tree] = {}
    for record in runs.values():
        label = Text.assemble(plain(record.name, "bold"), "  ", plain(short_id(record.id), "dim"), "  ")
        label.append_text(render_status(record.status, record.ended_late))
        label.append(f"  {age(record, now)}", style="dim")
        about = headline(record, now)
        if about:
            label.append(f"  {one_line(about, 60)}", style="dim")
        parent = nodes.get(record.parent_id or "")
        nodes[record.id] = Tree(label, guide_style="dim") if parent is None else parent.add(label)
    return nodes[next(iter(runs))]


def render_receipt(
    receipt: Receipt,
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
        plain(name or (record.name if record else "run"), "bold"), "  ", plain(short_id(receipt.run_id), "dim"), "  "
    )
    title.append_text(render_status(receipt.status, receipt.ended_late))
    if receipt.mode is None:
        title.append("  it had already ended", style="dim")
        return title
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(width=1)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    before = ""
    for name, value in _receipt_facts(receipt, record, with_output=with_output, full=full):
        facts.add_row("", "" if name == before else name, value)
        before = name
    return Group(title, facts)


def _force(rung: Rung | None) -> str:
    if rung is None:
        return ""
    return ", no force needed" if rung is Rung.SIGNAL else f", highest rung {rung}"


def _receipt_facts(
    receipt: Receipt, record: RunRecord | None, *, with_output: bool, full: bool | None
) -> Iterable[tuple[str, Text]]:
    outcome = record.outcome if record is not None else None
    how = f"{receipt.mode}" + ("" if outcome is None else _force(outcome.rung))
    yield "stop", plain(how if receipt.answer is Answer.ACCEPTED else f"{in_words(receipt.answer)}: {how}")
    if receipt.reason is not None:
        yield "reason", plain(receipt.reason if full else one_line(receipt.reason))
    if record is not None and record.stop is not None and record.stop.reason.source is not None:
        yield "over", plain(record.stop.reason.source)
    yield "times", plain(_times(receipt))
    if receipt.blind:
        yield "note", Text(_blind_note(receipt))
    if receipt.in_flight:
        yield "in flight", plain(count_labels(receipt.in_flight))
    for (kind, name, fate), count in Counter((node.kind, node.name, node.fate) for node in receipt.entries).items():
        line = plain(f"{kind} {name} ")
        line.append(_FATE_TEXTS.get(fate, str(fate)), style=_FATES.get(fate, "yellow"))
        yield "fate", line if count == 1 else line.append(f" ×{count}")
    if receipt.entered_after:
        yield "after it", plain(count_labels(receipt.entered_after))
    yield from _unreached_facts(receipt)
    if receipt.too_late:
        yield "too late", Text("it finished before it noticed the stop")
    if outcome is not None:
        yield "clean-up", Text(_CLEAN_UP[outcome.clean])
        if with_output:
            yield from _output(outcome.partial, outcome.result, full=full)


def _unreached_facts(receipt: Receipt) -> Iterable[tuple[str, Text]]:
    """Yield what the stop did not reach."""
    if receipt.library_threads:
        yield "beside it", plain(f"library threads, not part of the run: {', '.join(receipt.library_threads)}")
    for connection in receipt.unguarded:
        yield "unguarded", plain(f"connection outside any boundary: {connection}")


def _blind_note(receipt: Receipt) -> str:
    """Say why a run was given less time than the grace, and when it is or was cancelled."""
    cancelled = next((step.after for step in receipt.ladder if step.rung is Rung.CANCEL), None)
    if cancelled is None:
        return NEVER_LOOKED
    return f"{NEVER_LOOKED}: cancelled {'after' if receipt.status.terminal else 'in'} {cancelled:.3g} s"


def _output(partial: object, result: object, *, full: bool | None) -> Iterable[tuple[str, Text]]:
    hint = "" if full is None else FULL_HINT
    for name, value in (("partial", partial), ("result", result)):
        if value is not None:
            text = value_text(value)
            yield name, plain(text if full else excerpt(text, hint=hint))


def excerpt(text: str, lines: int = 6, width: int = 400, *, hint: str = "") -> str:
    """Return the end of a text, and how much was left out."""
    end = text.strip("\n")[-width:].split("\n")[-lines:]
    visible = "\n".join(end)
    left_out = len(text.strip("\n")) - len(visible)
    return f"… ({left_out} characters before{hint})\n{visible}" if left_out > 0 else visible


def _times(receipt: Receipt) -> str:
    if receipt.requested_at is None:
        return "not yet requested"
    began = receipt.requested_at
    at = dt.datetime.fromtimestamp(began).astimezone().strftime("%H:%M:%S")
    later = {
        "acknowledged": receipt.acknowledged_at,
        "delivered": receipt.delivered_at,
        "ended": receipt.ended_at,
        "ended after all": receipt.ended_late,
    }
    steps = [f"{name} +{max(0.0, when - began):.3f}s" for name, when in later.items() if when is not None]
    return " · ".join([f"requested {at}", *steps])


def next_mode(mode: Mode | None) -> Mode | None:
    """Return the mode that pressing again means: graceful, then immediate, then kill, then none."""
    if mode is None:
        return Mode.GRACEFUL
    return {Mode.COOPERATIVE: Mode.GRACEFUL, Mode.GRACEFUL: Mode.IMMEDIATE, Mode.IMMEDIATE: Mode.KILL}.get(mode)


_LAST_LINES = 12


def render_details(
    record: RunRecord,
    tree: Mapping[str, RunSummary],
    receipt: Receipt | None,
    now: float,
    *,
    full: bool,
) -> RenderableType:
    """Return what a run is, the runs it started, its output, its error and its receipt."""
    parts: list[RenderableType] = [_title(record, now), _details_facts(record, tree[record.id], now, full=full)]
    if len(tree) > 1:
        parts += ["", Text("tree", style="bold"), render_tree(tree, now)]
    outcome = record.outcome
    if outcome is not None:
        for name, value in (("result", outcome.result), ("partial", outcome.partial)):
            if value is not None:
                text = value_text(value)
                parts += [
                    "",
                    Text(name, style="bold"),
                    plain(text if full else excerpt(text, _LAST_LINES, hint=FULL_HINT)),
                ]
        parts += [plain(f"its {name} is not kept: {why}", "dim") for name, why in outcome.omitted.items()]
        if outcome.error is not None:
            parts += ["", render_error(outcome.error)]
    if receipt is not None and receipt.mode is not None:
        parts += ["", Text("receipt", style="bold"), render_receipt(receipt, record, with_output=False, full=full)]
    return Group(*parts)


def _title(record: RunRecord, now: float) -> Text:
    title = Text.assemble(plain(record.name, "bold"), "  ", plain(record.id, "dim"), "  ")
    title.append_text(render_status(record.status, record.ended_late))
    return title.append(f"  {age(record, now)}", style="dim")


def _details_facts(record: RunRecord, summary: RunSummary, now: float, *, full: bool) -> Table:
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(width=1)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (*_stored_facts(record, full=full), *_live_facts(summary, now)):
        facts.add_row("", name, plain(value))
    return facts


def _stored_facts(record: RunRecord, *, full: bool) -> Iterable[tuple[str, str]]:
    for name, at in (("started", record.started_at or record.created_at), ("ended", record.ended_at)):
        if at is not None:
            yield name, dt.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if record.parent_id is not None:
        yield "started by", short_id(record.parent_id)
    labels = ", ".join(f"{key}:{value}" for key, value in record.labels.items()) or None
    for name, value in (("owner", record.owner), ("conversation", record.key), ("labels", labels)):
        if value is not None:
            yield name, one_line(value)
    if record.input not in (None, {}):
        text = value_text(record.input)
        yield "input", safe(text) if full else one_line(text)
    for name, why in record.omitted.items():
        yield "not kept", one_line(f"{name}: {why}")
    yield "worker", short_id(record.worker) or "none yet"
    if record.isolation != "auto":
        yield "isolation", record.isolation


def _live_facts(summary: RunSummary, now: float) -> Iterable[tuple[str, str]]:
    if summary.over:
        return
    if summary.in_flight is not None:
        yield "in flight", count_labels(summary.in_flight) or "nothing"
    if summary.mode is not None:
        yield "stopping", Countdown.of_summary(summary).describe(now)


def render_error(error: ErrorRecord) -> RenderableType:
    """Return an error as Python prints it: the traceback, then the exception."""
    if not error.trace:
        return plain(f"{error.type}: {error.message}", "red")
    above, _, last = error.trace.rstrip().rpartition("\n")
    return Group(plain(above), plain(last, "red"))

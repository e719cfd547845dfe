"""Everything about one run on one screen, for ``stoppable show``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stoppable._core.stop import Receipt
from stoppable.cli import show
from stoppable.cli.countdown import Countdown, counted
from stoppable.cli.text import first, plain, safe, value_text
from stoppable.records import ErrorRecord, RunRecord, RunSummary

_LAST_LINES = 12


def details(
    record: RunRecord,
    tree: Mapping[str, RunSummary],
    receipt: Receipt | None,
    now: float,
    *,
    full: bool,
) -> RenderableType:
    """Return what a run is, the runs it started, its output, its error and its receipt."""
    parts: list[RenderableType] = [_title(record, now), _facts(record, tree[record.id], now, full=full)]
    if len(tree) > 1:
        parts += ["", Text("tree", style="bold"), show.tree(tree, now)]
    outcome = record.outcome
    if outcome is not None:
        for name, kept in (("result", outcome.result), ("partial", outcome.partial)):
            if kept is not None:
                text = value_text(kept)
                parts += [
                    "",
                    Text(name, style="bold"),
                    plain(text if full else show.excerpt(text, _LAST_LINES, hint=show.FULL_HINT)),
                ]
        parts += [plain(f"its {name} is not kept: {why}", "dim") for name, why in outcome.omitted.items()]
        if outcome.error is not None:
            parts += ["", error(outcome.error)]
    if receipt is not None and receipt.mode is not None:
        parts += ["", Text("receipt", style="bold"), show.receipt(receipt, record, with_output=False, full=full)]
    return Group(*parts)


def _title(record: RunRecord, now: float) -> Text:
    title = Text.assemble(plain(record.name, "bold"), "  ", plain(record.id, "dim"), "  ")
    title.append_text(show.status(record.status, record.ended_late))
    return title.append(f"  {show.age(record, now)}", style="dim")


def _facts(record: RunRecord, summary: RunSummary, now: float, *, full: bool) -> Table:
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(width=1)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (*_told(record, full=full), *_told_live(summary, now)):
        facts.add_row("", name, plain(value))
    return facts


def _told(record: RunRecord, *, full: bool) -> Iterable[tuple[str, str]]:
    for name, at in (("started", record.started_at or record.created_at), ("ended", record.ended_at)):
        if at is not None:
            yield name, dt.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if record.parent_id is not None:
        yield "started by", show.short(record.parent_id)
    labels = ", ".join(f"{key}:{value}" for key, value in record.labels.items()) or None
    for name, value in (("owner", record.owner), ("conversation", record.key), ("labels", labels)):
        if value is not None:
            yield name, first(value)
    if record.input not in (None, {}):
        text = value_text(record.input)
        yield "input", safe(text) if full else first(text)
    for name, why in record.omitted.items():
        yield "not kept", first(f"{name}: {why}")
    yield "worker", show.short(record.worker) or "none yet"
    if record.isolation != "auto":
        yield "isolation", record.isolation


def _told_live(summary: RunSummary, now: float) -> Iterable[tuple[str, str]]:
    if summary.over:
        return
    if summary.in_flight is not None:
        yield "in flight", counted(summary.in_flight) or "nothing"
    if summary.mode is not None:
        yield "stopping", Countdown.of_summary(summary).told(now)


def error(found: ErrorRecord) -> RenderableType:
    """Return an error as Python prints it: the traceback, then the exception."""
    if not found.trace:
        return plain(f"{found.type}: {found.message}", "red")
    above, _, last = found.trace.rstrip().rpartition("\n")
    return Group(plain(above), plain(last, "red"))

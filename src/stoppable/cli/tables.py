"""Runs, agents, holds and the audit as tables that fit the terminal.

A column without room is left out; if even the others do not fit, the rows are stacked.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from stoppable.cli import formatting
from stoppable.cli.formatting import with_subtrees
from stoppable.cli.text import one_line, plain
from stoppable.records import AuditEntry, Hold, RunSummary, Selector

if TYPE_CHECKING:
    from stoppable.client import AgentInfo


_GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its header, how much room it needs and wants, and when it is left out."""

    name: str
    min_width: int = 0
    """The narrowest that a longer cell is cut or folded to; 0 keeps its words whole."""
    preferred: int = 0
    """Columns with a higher drop order are left out before this one gets narrower than this."""
    max_width: int = 1000
    """No wider than this."""
    drop_order: int = 0
    """0 is always shown; of the others the highest is left out first."""
    breaks: str = r"\s+"
    """Where a cell may be folded, as a regular expression."""
    truncate: bool = False
    """Whether a cell that is too long ends in an ellipsis; otherwise it is folded."""
    right: bool = False


class FittedTable:
    """Draws rows below their headers with as many columns as the width has room for.

    A wider terminal never shows fewer columns. If even those that are always shown do not fit, each row becomes a
    list of ``NAME  value`` with all columns.
    """

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
        self._columns, self._rows = columns, rows
        self._full_widths = [
            min(one.max_width, self._longest(number, words=False)) for number, one in enumerate(columns)
        ]
        self._min_widths = [self._need(number, one.min_width) for number, one in enumerate(columns)]
        self._preferred = [self._need(number, one.preferred or one.min_width) for number, one in enumerate(columns)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        numbers = self._columns_that_fit(options.max_width)
        yield self._stack_rows() if numbers is None else self._lay_out(numbers, options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(len(one.name) for one in self._columns), options.max_width)

    def _longest(self, number: int, *, words: bool) -> int:
        column = self._columns[number]
        cells = [row[number].plain for row in self._rows]
        parts = [word for cell in cells for word in re.split(column.breaks, cell)] if words else cells
        return max(cell_len(part) for part in (column.name, *parts))

    def _need(self, number: int, min_width: int) -> int:
        column = self._columns[number]
        whole = self._full_widths[number] if column.truncate else self._longest(number, words=True)
        return max(len(column.name), min(whole, min_width) if min_width else whole)

    def _columns_that_fit(self, width: int) -> list[int] | None:
        """Return the columns that fit, or None if those that are always shown do not."""
        orders = sorted({one.drop_order for one in self._columns}, reverse=True)
        for highest in orders:
            numbers = [number for number, one in enumerate(self._columns) if one.drop_order <= highest]
            needs = [
                (self._min_widths if self._columns[number].drop_order == highest else self._preferred)[number]
                for number in numbers
            ]
            if sum(needs) + _GAP * (len(numbers) - 1) <= width:
                return numbers
        return None

    def _widths(self, numbers: Sequence[int], width: int) -> dict[int, int]:
        """Return the width of each: what it needs, then what it prefers, and a fair part of what is left."""
        widths = {number: self._min_widths[number] for number in numbers}
        left = width - sum(widths.values()) - _GAP * (len(numbers) - 1)
        for widest in (self._preferred, self._full_widths):
            while growing := [number for number in numbers if widths[number] < widest[number]][:left]:
                for number in growing:
                    widths[number] += 1
                left -= len(growing)
        return widths

    def _lay_out(self, numbers: Sequence[int], width: int) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, _GAP, 0, 0))
        for number, room in self._widths(numbers, width).items():
            column = self._columns[number]
            table.add_column(
                column.name,
                width=room,
                no_wrap=column.truncate,
                overflow="ellipsis" if column.truncate else "fold",
                justify="right" if column.right else "left",
            )
        for row in self._rows:
            table.add_row(*(row[number] for number in numbers))
        return table

    def _stack_rows(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False, show_edge=False, padding=(0, _GAP, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for row in self._rows:
            if table.row_count:
                table.add_row("", "")
            for column, cell in zip(self._columns, row, strict=True):
                table.add_row(column.name, cell)
        return table


_RUNS = (
    Column(name="RUN", truncate=True),
    Column(name="AGENT", min_width=10, max_width=24, truncate=True),
    Column(name="OWNER", min_width=8, max_width=16, truncate=True, drop_order=4),
    Column(name="STATUS", breaks=r" (?=\()"),
    Column(name="STARTED", truncate=True, drop_order=3),
    Column(name="TIME", truncate=True, right=True, drop_order=1),
    Column(name="WHAT", min_width=12, preferred=30, truncate=True, drop_order=2),
)
_FULL_RUNS = tuple(Column(name=one.name, min_width=24 if one.name == "WHAT" else 0, right=one.right) for one in _RUNS)
_AGENTS = (
    Column(name="AGENT", min_width=24),
    Column(name="TAKES", min_width=16),
    Column(name="WHAT IT DOES", min_width=20),
)
_HOLDS = (
    Column(name="HOLD", truncate=True),
    Column(name="REFUSES", min_width=16),
    Column(name="SINCE"),
    Column(name="REASON", min_width=12),
)
_AUDIT = (
    Column(name="TIME"),
    Column(name="ACTION"),
    Column(name="ACTOR", min_width=12),
    Column(name="TARGET", min_width=16),
    Column(name="RESULT", min_width=12),
    Column(name="REASON", min_width=12),
)


def start_time(at: float, now: float) -> str:
    """Return when a run was started: the time of day, and the date if that was not today."""
    then, today = (dt.datetime.fromtimestamp(moment).astimezone() for moment in (at, now))
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%d %b %H:%M")


def runs(records: Iterable[RunSummary], now: float, *, full: bool = False) -> FittedTable:
    """Return a table of runs; a full one has every column, and nothing in it is cut."""
    summaries = list(records)
    by_id = with_subtrees(summaries)
    rows = [
        (
            plain(record.id if full else formatting.short_id(record.id)),
            plain("  " * (depth - 1) + "└ " * bool(depth) + record.name),
            plain(record.owner or "-"),
            formatting.render_status(record.status, record.ended_late),
            plain(start_time(record.created_at, now)),
            plain(formatting.age(record, now)),
            plain(_what(by_id[record.id], now, full=full)),
        )
        for record, depth in below_parents(summaries)
    ]
    return FittedTable(_FULL_RUNS if full else _RUNS, rows)


def _what(record: RunSummary, now: float, *, full: bool) -> str:
    text = formatting.headline(record, now)
    return text if full else one_line(text)


def below_parents(records: Iterable[RunSummary]) -> Iterator[tuple[RunSummary, int]]:
    """Yield runs as they come, except that children follow their parent, oldest first, each with its depth.

    A child whose parent is not among them, because a limit or filter left it out, is still drawn as a child.
    """
    runs = list(records)
    ids = {record.id for record in runs}
    children: dict[str, list[RunSummary]] = {}
    for record in reversed(runs):
        children.setdefault(record.parent_id or "", []).append(record)
    stack = [(record, int(record.parent_id is not None)) for record in reversed(runs) if record.parent_id not in ids]
    while stack:
        record, depth = stack.pop()
        yield record, depth
        stack += [(child, depth + 1) for child in reversed(children.get(record.id, []))]


def agents(infos: Iterable[AgentInfo]) -> FittedTable:
    """Return a table of agents."""
    rows = [(plain(one.name), plain(_takes(one.input) or "-"), plain(one_line(one.description))) for one in infos]
    return FittedTable(_AGENTS, rows)


def _takes(schema: Mapping[str, Any]) -> str:
    """Return what an agent takes, from the schema of its input: ``topic: string, rounds: integer = 3``."""
    required = schema.get("required") or ()
    return ", ".join(_parameter(name, one, name in required) for name, one in (schema.get("properties") or {}).items())


def _parameter(name: str, schema: Any, is_needed: bool) -> str:  # noqa: FBT001 - private
    fields = schema if isinstance(schema, Mapping) else {}
    kind = f": {fields['type']}" if isinstance(fields.get("type"), str) else ""
    if is_needed:
        return f"{name}{kind}"
    return f"{name}{kind} = {fields['default']!r}" if "default" in fields else f"[{name}{kind}]"


def holds(in_force: Iterable[Hold]) -> FittedTable:
    """Return a table of holds."""
    rows = [
        (
            plain(hold.id),
            plain(selector(hold.selector)),
            plain(_date(hold.created_at)),
            plain(one_line(hold.reason or "-")),
        )
        for hold in in_force
    ]
    return FittedTable(_HOLDS, rows)


def _date(at: float) -> str:
    return dt.datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def audit(entries: Iterable[AuditEntry]) -> FittedTable:
    """Return a table of who did what."""
    rows = []
    for entry in entries:
        action = f"stop {entry.target.get('mode')}" if entry.action == "stop" else entry.action
        cells = (_date(entry.at), action, entry.actor or "-", _target(entry), _result(entry), entry.reason)
        rows.append([plain(one_line(one)) for one in cells])
    return FittedTable(_AUDIT, rows)


def _target(entry: AuditEntry) -> str:
    fields = entry.target.get("selector")
    if fields is None:
        return f"run {formatting.short_id(entry.target['run'])}"
    return selector(Selector(owner=fields["owner"], labels=fields["labels"], agent=fields["agent"], all=True))


def _result(entry: AuditEntry) -> str:
    answers = Counter(entry.result.get("runs", {}).values())
    parts = [
        formatting.in_words(answer) if "run" in entry.target else f"{count} {formatting.in_words(answer)}"
        for answer, count in answers.items()
    ]
    if entry.result.get("hold"):
        parts.append(f"hold {entry.result['hold']}")
    return ", ".join(parts) or "no run"


def selector(value: Selector) -> str:
    """Return the runs that a selector selects, in words."""
    parts = [f"owner {value.owner}"] if value.owner is not None else []
    parts += [f"label {key}:{item}" for key, item in value.labels.items()]
    parts += [f"agent {value.agent}"] if value.agent is not None else []
    return ", ".join(parts) or "every run"

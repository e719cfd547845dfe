"""Tables that fit the terminal: a column without room is left out, or the rows are stacked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its header, how much room it needs and wants, and when it is left out."""

    name: str
    least: int = 0
    """The narrowest that a longer cell is cut or folded to; 0 keeps its words whole."""
    good: int = 0
    """Columns of a higher rank are left out before this one gets narrower than this."""
    most: int = 1000
    """No wider than this."""
    rank: int = 0
    """0 is always shown; of the others the highest is left out first."""
    breaks: str = r"\s+"
    """Where a cell may be folded, as a regular expression."""
    cut: bool = False
    """Whether a cell that is too long ends in an ellipsis; otherwise it is folded."""
    right: bool = False


class FittedTable:
    """Draws rows below their headers with as many columns as the width has room for.

    A wider terminal never shows fewer columns. If even those that are always shown do not fit, each row becomes a
    list of ``NAME  value`` with all columns.
    """

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
        self._columns, self._rows = columns, rows
        self._wanted = [min(one.most, self._longest(number, words=False)) for number, one in enumerate(columns)]
        self._needed = [self._need(number, one.least) for number, one in enumerate(columns)]
        self._good = [self._need(number, one.good or one.least) for number, one in enumerate(columns)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._shown(options.max_width)
        yield self._stacked() if shown is None else self._side_by_side(shown, options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(len(one.name) for one in self._columns), options.max_width)

    def _longest(self, number: int, *, words: bool) -> int:
        column = self._columns[number]
        cells = [row[number].plain for row in self._rows]
        parts = [word for cell in cells for word in re.split(column.breaks, cell)] if words else cells
        return max(cell_len(part) for part in (column.name, *parts))

    def _need(self, number: int, least: int) -> int:
        column = self._columns[number]
        whole = self._wanted[number] if column.cut else self._longest(number, words=True)
        return max(len(column.name), min(whole, least) if least else whole)

    def _shown(self, width: int) -> list[int] | None:
        """Return the columns that fit, or None if those that are always shown do not."""
        ranks = sorted({one.rank for one in self._columns}, reverse=True)
        for highest in ranks:
            shown = [number for number, one in enumerate(self._columns) if one.rank <= highest]
            needs = [
                (self._needed if self._columns[number].rank == highest else self._good)[number] for number in shown
            ]
            if sum(needs) + _GAP * (len(shown) - 1) <= width:
                return shown
        return None

    def _widths(self, shown: Sequence[int], width: int) -> dict[int, int]:
        """Return the width of each: what it needs, then what is good, and a fair part of what is left."""
        widths = {number: self._needed[number] for number in shown}
        left = width - sum(widths.values()) - _GAP * (len(shown) - 1)
        for most in (self._good, self._wanted):
            while growing := [number for number in shown if widths[number] < most[number]][:left]:
                for number in growing:
                    widths[number] += 1
                left -= len(growing)
        return widths

    def _side_by_side(self, shown: Sequence[int], width: int) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, _GAP, 0, 0))
        for number, room in self._widths(shown, width).items():
            column = self._columns[number]
            table.add_column(
                column.name,
                width=room,
                no_wrap=column.cut,
                overflow="ellipsis" if column.cut else "fold",
                justify="right" if column.right else "left",
            )
        for row in self._rows:
            table.add_row(*(row[number] for number in shown))
        return table

    def _stacked(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False, show_edge=False, padding=(0, _GAP, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for row in self._rows:
            if table.row_count:
                table.add_row("", "")
            for column, cell in zip(self._columns, row, strict=True):
                table.add_row(column.name, cell)
        return table

"""The results table of a benchmark: as text, as Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HEADER = ("what", "cost", "× floor", "target", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a row must not exceed: so many times the floor, or so many of its unit."""

    limit: float
    absolute: bool = False
    strict: bool = False

    def met(self, value: float | None, ratio: float | None) -> bool:
        """Return whether a row keeps to it."""
        measured = value if self.absolute else ratio
        assert measured is not None, "a row with a target has what the target is about"
        return measured < self.limit if self.strict else measured <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured thing; ``note`` stands in for a value that does not exist."""

    name: str
    value: float | None = None
    unit: str = "ns"
    ratio: float | None = None
    target: Target | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target is met; empty for a row without one."""
        if self.target is None:
            return ""
        return "ok" if self.target.met(self.value, self.ratio) else "MISS"

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of the header."""
        cost = self.note if self.value is None else f"{number(self.value)} {self.unit}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return (self.name, cost, ratio, self._target_text(), self.verdict)

    def _target_text(self) -> str:
        if self.target is None:
            return ""
        sign = "<" if self.target.strict else "≤"
        unit = f" {self.unit}" if self.target.absolute else "×"
        return f"{sign} {self.target.limit:g}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows that share a floor."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = field(default=())


def number(value: float) -> str:
    """Write a number with about three digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def against(floor: float, name: str, value: float | None, *, target: Target | None = None, unit: str = "ns") -> Row:
    """Make a row with its ratio to the floor; None stands for a peer that is not installed."""
    if value is None:
        return Row(name=name, note="not installed", unit=unit)
    return Row(name=name, value=value, unit=unit, ratio=value / floor, target=target)


def summary(name: str, sections: Iterable[Section]) -> str:
    """Say in one line which targets are met."""
    rows = [(section, row) for section in sections for row in section.rows if row.target is not None]
    missed = [f"{row.name} ({_measured(row)})" for _, row in rows if row.verdict == "MISS"]
    line = f"{name}: {len(rows) - len(missed)} of {len(rows)} targets met"
    return f"{line}; MISS: {', '.join(missed)}" if missed else line


def _measured(row: Row) -> str:
    if row.target is not None and row.target.absolute:
        return f"{number(row.value or 0.0)} {row.unit}"
    return f"{row.ratio:.2f}×"


def as_text(section: Section) -> str:
    """Write a section for a terminal."""
    grid = [HEADER, *(row.cells() for row in section.rows)]
    widths = [max(len(cells[column]) for cells in grid) for column in range(len(HEADER))]
    lines = [f"\n{section.title}"]
    for cells in grid:
        first, *rest = (
            cell.ljust(width) if column in {0, 4} else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("  " + "  ".join([first, *rest]).rstrip())
    return "\n".join([*lines, *(f"  · {note}" for note in section.notes)])


def as_markdown(
    title: str, method: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section], last_line: str
) -> str:
    """Write the whole report as a page."""
    lines = [f"# {title}", "", method, "", *(f"- {name}: {value}" for name, value in facts), ""]
    for section in sections:
        lines += [f"## {section.title}", "", _markdown_row(HEADER), "|---|---:|---:|---:|---|"]
        lines += [_markdown_row(row.cells()) for row in section.rows]
        lines += ["", *(f"- {note}" for note in section.notes), *([""] if section.notes else [])]
    return "\n".join([*lines, last_line, ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_json(facts: Sequence[tuple[str, str]], sections: Sequence[Section], last_line: str) -> dict[str, Any]:
    """Return the whole report as plain values."""
    return {
        "facts": dict(facts),
        "sections": [
            {
                "title": section.title,
                "rows": [{**asdict(row), "verdict": row.verdict} for row in section.rows],
                "notes": list(section.notes),
            }
            for section in sections
        ],
        "summary": last_line,
    }


def write(path: Path, text: str) -> None:
    """Write a report, with its directory if need be."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")

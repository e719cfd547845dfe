"""The table as Markdown, and as a page that loads nothing from elsewhere."""

from __future__ import annotations

import html
import statistics
from collections.abc import Iterator

from stopbench.judge import SCORES, Score
from stopbench.results import Cell, Results
from stopbench.scenarios import SCENARIOS

LETTERS = dict(zip(SCORES, "EPTBSNWK", strict=True))
"""Effects, processes, tokens, begun, state, next turn, waited, kept."""
RIGHT, FLIPS = "ok", "↔"
INTRO = (
    "Each agent is stopped in each scenario by the framework's own cancel, as its documentation says (plain), and with"
    " stoppable, gracefully and immediately. It runs in a process of its own against a scripted model server; effects,"
    " processes and tokens are counted from outside. What is wrong is bold. A cell names everything that was wrong in"
    f" any trial; {FLIPS} marks what was wrong in some trials only; – was not measured, or has no meaning."
)


def markdown(results: Results) -> str:
    """Return the page."""
    lines = ["# StopBench", "", "Written by `stopbench report`. " + INTRO, ""]
    lines += [f"- {name}: {value}" for name, value in _facts(results).items()]
    lines += ["", "## All cells", "", ", ".join(f"{letter} {name}" for name, letter in LETTERS.items()) + ".", ""]
    lines += [_row("", *SCENARIOS), _rule(len(SCENARIOS) + 1)]
    for subject, variant, cells in results.rows():
        lines.append(_row(f"{subject}, {variant}", *(_in_short(cells.get(name)) for name in SCENARIOS)))
    for title, found in (
        ("Where stoppable is worse than the framework's own cancel", results.worse()),
        ("What flips from trial to trial", results.flipping()),
    ):
        lines += ["", f"## {title}", "", *([f"- {each}" for each in found] or ["Nowhere."])]
    lines += ["", "## Scenarios", "", *(f"- **{name}**: {each.about}" for name, each in SCENARIOS.items())]
    lines += ["", "## Scores", "", *(f"- **{name}**: {about}" for name, about in SCORES.items())]
    for subject, about in results.subjects.items():
        lines += ["", f"## {subject}", "", f"{about['about']} {_versions(about['versions'])}", ""]
        lines += [f"Plain: {about['cancel']}.", "", _row("", *SCORES), _rule(len(SCORES) + 1)]
        lines += [_row(*row) for row in _details(results, subject)]
    return "\n".join([*lines, ""])


def page(results: Results) -> str:
    """Return the page as HTML, with a time line for each cell."""
    parts = [f"<p>{html.escape(INTRO)}</p>", "<ul>"]
    parts += [f"<li>{html.escape(f'{name}: {value}')}</li>" for name, value in _facts(results).items()]
    legend = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
    parts += ["</ul>", f"<p>{html.escape(legend)}</p>", "<table><tr><th></th>"]
    parts += [f"<th title='{html.escape(each.about)}'>{name}</th>" for name, each in SCENARIOS.items()]
    parts.append("</tr>")
    for subject, variant, cells in results.rows():
        parts.append(f"<tr><th><a href='#{subject}'>{subject}</a>, {variant}</th>")
        for name in SCENARIOS:
            cell = cells.get(name)
            text = _in_short(cell).replace("*", "")
            kind = "none" if cell is None else "right" if text == RIGHT else "wrong"
            title = html.escape("; ".join(_words(cell)) if cell else "")
            parts.append(f"<td class='{kind}' title='{title}'>{html.escape(text)}</td>")
        parts.append("</tr>")
    parts.append("</table>")
    for subject, about in results.subjects.items():
        parts += [
            f"<h2 id='{subject}'>{subject}</h2>",
            f"<p>{html.escape(about['about'])} {_versions(about['versions'])}",
        ]
        parts += [f" Plain: {html.escape(about['cancel'].replace('`', ''))}.</p>", "<table><tr><th></th>"]
        parts += [f"<th title='{html.escape(words)}'>{name}</th>" for name, words in SCORES.items()]
        parts.append("<th>time line: effects, tokens, | the press, | the report</th></tr>")
        cells = [cell for name, _, row in results.rows() if name == subject for cell in row.values()]
        for cell, row in zip(sorted(cells, key=_order), _details(results, subject), strict=True):
            parts.append("<tr>" + "".join(_html_cell(text) for text in row) + f"<td>{_drawing(cell)}</td></tr>")
        parts.append("</table>")
    return _PAGE.format(body="\n".join(parts))


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>StopBench</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ border: 1px solid #ccc; padding: .25rem .5rem; text-align: left; vertical-align: top }}
.wrong {{ background: #fde0dc; font-weight: bold }}
.right {{ background: #e3f3e3 }}
.none {{ color: #888 }}
</style>
<h1>StopBench</h1>
{body}
</html>
"""


def _facts(results: Results) -> dict[str, str]:
    """Return what is known of the machine, and how busy it was with other things."""
    gaps = [gap for cell in results.cells.values() for gap in cell.gaps]
    if not gaps:
        return results.facts
    pauses = f"{statistics.median(gaps):.2f} s in most trials, {max(gaps):.2f} s in one; the times are upper bounds"
    return results.facts | {"Longest pause of the harness because the machine was busy": pauses}


def _in_short(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    if not cell.trials:
        return "not measured"
    flips = cell.flips()
    letters = " ".join(LETTERS[name] + (FLIPS if name in flips else "") for name in cell.wrong())
    return f"**{letters}**" if letters else RIGHT


def _words(cell: Cell) -> list[str]:
    if not cell.trials:
        return cell.failures[:1]
    return [score.words for name in cell.wrong() if (score := cell.worst(name)) is not None]


def _order(cell: Cell) -> int:
    return list(SCENARIOS).index(cell.scenario)


def _details(results: Results, subject: str) -> Iterator[tuple[str, ...]]:
    cells = [cell for name, _, row in results.rows() if name == subject for cell in row.values()]
    for cell in sorted(cells, key=_order):
        name = f"{cell.scenario}, {cell.variant}"
        if not cell.trials:
            yield (name, f"not measured: {' '.join(cell.failures[-1].split())[:160]}", *("",) * (len(SCORES) - 1))
            continue
        flips = cell.flips()
        yield (name, *(_score(cell.worst(each)) + (FLIPS if each in flips else "") for each in SCORES))


def _score(score: Score | None) -> str:
    if score is None:
        return "–"
    if not score.is_wrong:
        return str(score.value)
    is_number = isinstance(score.value, int | float)
    return f"**{score.value}**" if is_number and score.value else f"**{score.words}**"


def _versions(versions: dict[str, str]) -> str:
    return f"({', '.join(f'{name} {version}' for name, version in versions.items())})"


def _html_cell(text: str) -> str:
    kind = " class='wrong'" if text.startswith("**") else ""
    return f"<td{kind}>{html.escape(text.replace('*', ''))}</td>"


def _drawing(cell: Cell) -> str:
    """Return a time line from a second before the press to four after it."""
    if not cell.times:
        return ""
    width, height, before, after = 400, 24, 1.0, 4.0

    def x(at: float) -> float:
        return round((min(max(at, -before), after) + before) / (before + after) * width, 1)

    marks = [f"<rect x='{x(at)}' y='14' width='1' height='8' fill='#27c'/>" for at in cell.times["tokens"]]
    marks += [f"<circle cx='{x(at)}' cy='7' r='3' fill='#c60'/>" for at in cell.times["effects"]]
    marks.append(f"<rect x='{x(0)}' y='0' width='2' height='{height}' fill='#d00'/>")
    if cell.times["reported"] is not None:
        marks.append(f"<rect x='{x(cell.times['reported'])}' y='0' width='2' height='{height}' fill='#080'/>")
    return f"<svg width='{width}' height='{height}' role='img' aria-label='time line'>{''.join(marks)}</svg>"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _rule(count: int) -> str:
    return "|---" * count + "|"

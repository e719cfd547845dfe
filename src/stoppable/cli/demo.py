"""``stoppable demo``: three runs side by side, of which the middle one is stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stoppable.cli import formatting, screen
from stoppable.cli.exits import Exit, complain, reports_errors
from stoppable.cli.live_view import RunDisplay, event_line, side_by_side
from stoppable.cli.options import Json
from stoppable.demo.three_runs import LABELS, Scenario, list_mistakes, play
from stoppable.records import Event, EventType, RunRecord
from stoppable.supervisor import Supervisor

_FAST_SECONDS = 0.05


@reports_errors
def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Take half a second instead of ten.")] = False,
    as_json: Json = False,
) -> None:
    """Play three runs side by side and stop one.

    A, B and C take ten steps each. B is stopped after three, A and C complete. Prints the receipts, and exits with 1 if
    a run has another status than expected.
    """
    scenario = Scenario(seconds=_FAST_SECONDS) if fast else Scenario()
    records = asyncio.run(_play(scenario, is_quiet=as_json))
    mistakes = list_mistakes(records, scenario)
    if as_json:
        screen.print_json(records)
    else:
        _report(records)
        if not mistakes:
            screen.say("as expected: B is stopped and kept its partial, A and C completed")
    for mistake in mistakes:
        complain(mistake)
    raise typer.Exit(Exit.FAILED if mistakes else Exit.DONE)


async def _play(scenario: Scenario, *, is_quiet: bool) -> dict[str, RunRecord]:
    views = {label: RunDisplay(label) for label in LABELS}
    if not is_quiet:
        screen.say(f"three runs of {scenario.steps} steps; B is stopped after {scenario.stop_after}")

    def show_event(label: str, event: Event) -> None:
        views[label].take(event)
        if not is_quiet and not screen.is_live() and event.type in {EventType.PROGRESS, EventType.STATUS}:
            screen.say(f"{label}  {event_line(event)}")

    with _screen(views, is_quiet=is_quiet):
        async with Supervisor() as supervisor:
            return await play(supervisor, scenario, show_event)


@contextlib.contextmanager
def _screen(views: Mapping[str, RunDisplay], *, is_quiet: bool) -> Iterator[None]:
    if is_quiet or not screen.is_live():
        yield
        return
    with Live(_Bars(views), console=screen.err(), refresh_per_second=12):
        yield


class _Bars:
    """The bars, drawn anew each time."""

    def __init__(self, views: Mapping[str, RunDisplay]) -> None:
        self._views = views

    def __rich__(self) -> Table:
        return side_by_side(self._views.values())


def _report(records: Mapping[str, RunRecord]) -> None:
    for label, record in records.items():
        screen.show("")
        if record.receipt is not None:
            screen.show(formatting.render_receipt(record.receipt, record, label))
        else:
            line = Text.assemble((label, "bold"), f"  {formatting.short_id(record.id)}  ")
            line.append_text(formatting.render_status(record.status))
            screen.show(line.append(f"  {record.outcome.result if record.outcome else ''}", style="dim"))
    screen.show("")

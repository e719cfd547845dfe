"""``stoppable watch``: a live table of runs, or one run until it is over."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from stoppable.cli import options, screen, show, tables
from stoppable.cli.direct import StoreClient
from stoppable.cli.exits import Exit, reports_errors
from stoppable.cli.following import follow
from stoppable.cli.newest import PolledRuns, PushedRuns
from stoppable.cli.options import Direct, Json, OptionalRun, Url
from stoppable.cli.output import quiet_keyboard
from stoppable.cli.text import first
from stoppable.records import RunSummary


@reports_errors
def watch(
    run: OptionalRun = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", min=0.1, max=86_400, help="Seconds between two refreshes; a change is shown at once."
        ),
    ] = 1.0,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100, help="How many, newest first.")] = 20,
    url: Url = None,
    store: Direct = None,
    as_json: Json = False,
) -> None:
    """Watch all runs in a live table, or one run until it is over."""
    with options.connect(url, store) as client:
        if run is not None:
            raise typer.Exit(follow(client, options.find(client, run), as_json=as_json))
        client.list(limit=1)  # an error is better said before the screen is taken
        runs = PolledRuns(client, limit) if isinstance(client, StoreClient) else PushedRuns(client, limit)
        try:
            if screen.is_live() and not as_json:
                _live(runs, interval)
            else:
                _lines(runs, interval, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(Exit.DONE) from None  # it is how one leaves


def _live(runs: PolledRuns | PushedRuns, interval: float) -> None:
    with quiet_keyboard(), Live(console=screen.err(), auto_refresh=False, screen=screen.err().is_terminal) as live:
        while True:
            live.update(_page(runs), refresh=True)
            runs.wait(interval)


def _page(runs: PolledRuns | PushedRuns) -> RenderableType:
    try:
        records = runs.newest()
    except ConnectionError as error:
        return Text(f"{error}\n\nstill trying; Ctrl-C leaves", style="red")
    live = sum(not record.over for record in records)
    head = Text.assemble(
        ("stoppable", "bold"), f"  {live} live of the newest {len(records)}  ", ("Ctrl-C leaves", "dim")
    )
    body: RenderableType = tables.runs(records, screen.now()) if records else Text("no runs yet", style="dim")
    return Group(head, "", body)


def _lines(runs: PolledRuns | PushedRuns, interval: float, *, as_json: bool) -> None:
    """Print a line for every run that is new or has another status; for files, pipes and programs."""
    seen: dict[str, RunSummary] = {}
    while True:
        for record in reversed(runs.newest()):
            before = seen.get(record.id)
            if before is not None and (before.status, before.ended_late) == (record.status, record.ended_late):
                continue
            seen[record.id] = record
            if as_json:
                screen.print_json(record, one_line=True)
            else:
                line = Text.assemble(f"{show.short(record.id)}  ")
                line.append_text(show.status(record.status, record.ended_late))
                screen.show(line.append(f"  {first(show.what(record, screen.now()))}"))
        runs.wait(interval)

"""Shows a run of a server until it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.live import Live

from stoppable.cli import details, screen, show
from stoppable.cli.exits import Exit, of_status
from stoppable.cli.text import safe, value_text
from stoppable.cli.view import RunView, told_as_line
from stoppable.records import RunRecord

if TYPE_CHECKING:
    from stoppable.cli.options import Connected


def follow(client: Connected, record: RunRecord, *, as_json: bool, after: int = 0) -> Exit:
    """Show the events of a run as they come, then how it ended; leaving it by Ctrl-C leaves the run alone."""
    try:
        if as_json:
            for event in client.events(record.id, after):
                screen.print_json(event, one_line=True)
        elif screen.is_live():
            _live(client, record, after)
        else:
            for event in client.events(record.id, after):
                line = told_as_line(event)
                if line is not None:
                    screen.say(safe(f"{event.seq:>5}  {line}"))
    except KeyboardInterrupt:
        screen.say(f"the run goes on: stop it with `stoppable stop {show.short(record.id)}`")
        return Exit.INTERRUPTED
    ended = client.get(record.id)
    if not as_json:
        conclude(ended)
    return of_status(ended.status)


def _live(client: Connected, record: RunRecord, after: int) -> None:
    view = RunView(record.name, record.id)
    view.hint = f"Ctrl-C leaves; `stoppable stop {show.short(record.id)}` stops it"
    with Live(view, console=screen.err(), refresh_per_second=8, transient=True):
        for event in client.events(record.id, after):
            view.take(event)


def conclude(record: RunRecord) -> None:
    """Print the result of a run to the standard output, and what is to be said about its end to the other."""
    outcome = record.outcome
    if record.receipt is not None and record.stop is not None:
        screen.err().print(show.receipt(record.receipt, record))
    else:
        title = show.status(record.status)
        screen.err().print(title.append(f"  {safe(record.name)} {show.short(record.id)}", style="dim"))
    if outcome is None:
        return
    if outcome.error is not None:
        screen.err().print(details.error(outcome.error))
    if outcome.result is not None:
        print_value(outcome.result)
    elif outcome.omitted:
        screen.say("; ".join(f"its {safe(name)} is not kept: {safe(why)}" for name, why in outcome.omitted.items()))


def print_value(value: object) -> None:
    """Print a result: harmless to a terminal, and untouched into a file or pipe."""
    text = value_text(value)
    screen.out().file.write((safe(text) if screen.out().is_terminal else text) + "\n")
    screen.out().file.flush()

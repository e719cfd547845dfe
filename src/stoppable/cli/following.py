"""Shows a run of a server until it is over."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rich.live import Live

from stoppable._core.state import Status
from stoppable._core.stop import Receipt
from stoppable.cli import details, screen, show
from stoppable.cli.countdown import Countdown, tree_of
from stoppable.cli.exits import Exit, of_status
from stoppable.cli.text import safe, value_text
from stoppable.cli.view import RunView, event_line
from stoppable.errors import StoppableError
from stoppable.records import RunRecord

if TYPE_CHECKING:
    from stoppable.cli.options import Connected

_LOOK_SECONDS = 0.5
_LAST_LOOK_SECONDS = 2.0  # a server may take its time


def follow(client: Connected, record: RunRecord, *, as_json: bool, after: int = 0) -> Exit:
    """Show the events of a run as they come, then how it ended. Ctrl-C stops watching, not the run."""
    try:
        if as_json:
            for event in client.events(record.id, after):
                screen.print_json(event, one_line=True)
        elif screen.is_live():
            _live(client, record, after)
        else:
            for event in client.events(record.id, after):
                line = event_line(event)
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
    with Live(view, console=screen.err(), refresh_per_second=8, transient=True), contextlib.ExitStack() as stack:
        for event in client.events(record.id, after):
            view.take(event)
            if view.status is Status.STOPPING and view.countdown is None:
                view.countdown = stack.enter_context(_StopWatch(client, record, view)).told


class _StopWatch:
    """Asks what a stopping run waits for, on a thread: its events do not include those of its children."""

    def __init__(self, client: Connected, record: RunRecord, view: RunView) -> None:
        self._client, self._record, self._view = client, record, view
        self._receipt: Receipt | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="stoppable-countdown", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_LAST_LOOK_SECONDS)

    def told(self, in_flight: Sequence[str]) -> str:
        """Say why it is not over yet, as of the last answer."""
        receipt = self._receipt
        if receipt is None:
            return "stopping"
        return f"stopping ({receipt.mode}): {Countdown.of_receipt(receipt, in_flight).told(screen.now())}"

    def _look(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(StoppableError):  # the stream of events fails too, and says why
                self._view.in_flight = tree_of(self._client, self._record.id)[self._record.id].in_flight
                self._receipt = self._client.receipt(self._record.id)
            self._over.wait(_LOOK_SECONDS)


def conclude(record: RunRecord) -> None:
    """Print the result of a run to stdout, and how it ended to stderr."""
    outcome = record.outcome
    if record.receipt is not None and record.stop is not None:
        screen.note(show.receipt(record.receipt, record))
    else:
        title = show.status(record.status)
        screen.note(title.append(f"  {safe(record.name)} {show.short(record.id)}", style="dim"))
    if outcome is None:
        return
    if outcome.error is not None:
        screen.note(details.error(outcome.error))
    if outcome.result is not None:
        print_value(outcome.result)
    elif outcome.omitted:
        screen.say("; ".join(f"its {safe(name)} is not kept: {safe(why)}" for name, why in outcome.omitted.items()))


def print_value(value: object) -> None:
    """Print a result: without control characters on a terminal, unchanged into a file or pipe."""
    text = value_text(value)
    screen.out().file.write((safe(text) if screen.out().is_terminal else text) + "\n")
    screen.out().file.flush()

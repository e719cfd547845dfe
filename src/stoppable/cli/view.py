"""A live view of one run, from its events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from stoppable._core.state import Status
from stoppable.cli import show
from stoppable.cli.countdown import counted
from stoppable.cli.text import first, line, plain
from stoppable.records import Event, EventType

_BAR_WIDTH = 30


class RunView:
    """Takes in the events of a run; rendering it draws its state."""

    def __init__(self, name: str, run_id: str = "") -> None:
        self.name = name
        self.run_id = run_id
        self.status: Status = Status.PENDING
        self.hint = ""
        self.in_flight: tuple[str, ...] | None = None
        """Set by callers that know the children too; None counts the events of this run."""
        self.countdown: Callable[[Sequence[str]], str] | None = None
        """Says why a stop is not over, given what is in flight, and when force comes."""
        self._open: list[str] = []
        self._step: float = 0
        self._of: float = 0
        self._last = ""
        self._began = time.monotonic()
        self._ended: float | None = None
        self._spinner = Spinner("dots")

    def take(self, event: Event) -> None:
        """Take in one event."""
        data = event.data
        match event.type:
            case EventType.STATUS | EventType.DONE:
                self.become(Status(data["status"]))
            case EventType.ENTERED:
                self._open.append(_label(data))
            case EventType.LEFT:
                if _label(data) in self._open:
                    self._open.remove(_label(data))
            case EventType.PARTIAL:
                self._partial(data)
            case EventType.PROGRESS:
                self._progress(data)
            case EventType.LOG:
                self._last = line(data.get("message", ""))
            case _:
                pass

    def become(self, status: Status) -> None:
        """Take in a status; a terminal one stays."""
        if self.status.terminal:
            return
        self.status = status
        if status.terminal:
            self._ended = time.monotonic()
            self._open.clear()
            self.in_flight = None

    def say(self, text: str) -> None:
        """Take in what a generator yielded."""
        self._last = (self._last + text)[-400:]

    def _partial(self, data: Any) -> None:
        if "delta" in data:
            self._last = (self._last + str(data["delta"]))[-400:]
        elif data.get("value") is not None:
            self._last = str(data["value"])[-400:]

    def _progress(self, data: Any) -> None:
        told = data.get("data")
        told = told if isinstance(told, dict) else {}
        step, of = told.get("step"), told.get("of")
        if isinstance(step, int | float) and isinstance(of, int | float) and of > 0:
            self._step, self._of = step, of
        elif "message" in told:
            self._last = str(told["message"])

    @property
    def elapsed(self) -> float:
        """Seconds since it was first seen."""
        return (self._ended or time.monotonic()) - self._began

    def title(self) -> RenderableType:
        """Return the line that says how far it is."""
        return side_by_side([self])

    def cells(self) -> list[RenderableType]:
        """Return the parts of that line."""
        spinner: RenderableType = self._spinner if not self.status.terminal else Text(" ")
        cells: list[RenderableType] = [spinner, plain(self.name, "bold")]
        if self.run_id:
            cells.append(plain(show.short(self.run_id), "dim"))
        cells.append(show.status(self.status))
        done = min(self._step, self._of)
        bar: RenderableType = ProgressBar(self._of, done, width=_BAR_WIDTH) if self._of else Text()
        cells += [bar, plain(f"{done:g}/{self._of:g}" if self._of else "")]
        cells.append(Text(show.duration(self.elapsed), style="dim"))
        return cells

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self.title()]
        in_flight = self._open if self.in_flight is None else self.in_flight
        if in_flight:
            parts.append(_fact("in flight", counted(in_flight)))
        if self._last.strip() and not self.status.terminal:
            parts.append(_fact("latest", line(self._last)))
        if self.countdown is not None and self.status is Status.STOPPING:
            parts.append(_indented(self.countdown(in_flight), "yellow"))
        if self.hint and not self.status.terminal:
            parts.append(_indented(self.hint, "yellow" if self.status is Status.STOPPING else "dim"))
        return Group(*parts)


def side_by_side(views: Iterable[RunView]) -> Table:
    """Return the title lines of runs, one below the other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for view in views:
        grid.add_row(*view.cells())
    return grid


def _fact(name: str, value: str) -> Text:
    return Text.assemble((f"  {name}  ", "dim"), plain(value), overflow="ellipsis", no_wrap=True)


def _indented(text: str, style: str) -> RenderableType:
    return Padding(plain(text, style), (0, 0, 0, 2))


def _label(data: Any) -> str:
    return f"{data.get('kind')}:{data.get('name')}" if data.get("name") else str(data.get("kind"))


def event_line(event: Event) -> str | None:
    """Return an event as a line of a log, or None where a log needs none."""
    data = event.data
    match event.type:
        case EventType.STATUS | EventType.DONE:
            mode = f" ({data['mode']})" if data.get("status") == Status.STOPPING and data.get("mode") else ""
            return f"{event.type}  {data.get('status')}{mode}"
        case EventType.ENTERED | EventType.LEFT:
            fate = f" ({data['fate']})" if data.get("fate") else ""
            return f"{event.type}  {_label(data)}{fate}"
        case EventType.PARTIAL:
            return f"partial  {line(data.get('delta', data.get('value', '')))}"
        case EventType.PROGRESS:
            told = data.get("data")
            pairs = [f"{key}={value}" for key, value in told.items()] if isinstance(told, dict) else []
            return f"progress  {first(' '.join([str(data.get('name')), *pairs]))}"
        case EventType.LATE:
            return f"late  it ended after all: {data.get('status')}"
        case _:
            return f"{event.type}  {line(data.get('message', data))}"

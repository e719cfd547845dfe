"""Live views: ``stoppable watch``, a table of runs, and one run from its events until it is over."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from stoppable._core.stop import Receipt
from stoppable._core.values import Status
from stoppable.cli import formatting, options, screen, tables
from stoppable.cli.exits import Exit, of_status, reports_errors
from stoppable.cli.formatting import Countdown, count_labels, tree_of
from stoppable.cli.options import Direct, Json, OptionalRun, Url
from stoppable.cli.text import last_line, one_line, plain, safe, value_text
from stoppable.errors import StoppableError
from stoppable.records import Event, EventType, RunRecord, RunSummary

if TYPE_CHECKING:
    from stoppable.cli.options import Connected
    from stoppable.cli.store_client import StoreClient
    from stoppable.client import Change
    from stoppable.client._sync.calls import Calls


_BAR_WIDTH = 30


class RunDisplay:
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
        self._began_at = time.monotonic()
        self._ended_at: float | None = None
        self._spinner = Spinner("dots")

    def take(self, event: Event) -> None:
        """Update the state that is drawn with an event."""
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
                self._last = last_line(data.get("message", ""))
            case _:
                pass

    def become(self, status: Status) -> None:
        """Take in a status; a terminal one stays."""
        if self.status.terminal:
            return
        self.status = status
        if status.terminal:
            self._ended_at = time.monotonic()
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
        progress = data.get("data")
        progress = progress if isinstance(progress, dict) else {}
        step, of = progress.get("step"), progress.get("of")
        if isinstance(step, int | float) and isinstance(of, int | float) and of > 0:
            self._step, self._of = step, of
        elif "message" in progress:
            self._last = str(progress["message"])

    @property
    def elapsed(self) -> float:
        """Seconds since it was first seen."""
        return (self._ended_at or time.monotonic()) - self._began_at

    def title(self) -> RenderableType:
        """Return the line that says how far it is."""
        return side_by_side([self])

    def cells(self) -> list[RenderableType]:
        """Return the parts of that line."""
        spinner: RenderableType = self._spinner if not self.status.terminal else Text(" ")
        cells: list[RenderableType] = [spinner, plain(self.name, "bold")]
        if self.run_id:
            cells.append(plain(formatting.short_id(self.run_id), "dim"))
        cells.append(formatting.render_status(self.status))
        done = min(self._step, self._of)
        bar: RenderableType = ProgressBar(self._of, done, width=_BAR_WIDTH) if self._of else Text()
        cells += [bar, plain(f"{done:g}/{self._of:g}" if self._of else "")]
        cells.append(Text(formatting.duration(self.elapsed), style="dim"))
        return cells

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self.title()]
        in_flight = self._open if self.in_flight is None else self.in_flight
        if in_flight:
            parts.append(_fact("in flight", count_labels(in_flight)))
        if self._last.strip() and not self.status.terminal:
            parts.append(_fact("latest", last_line(self._last)))
        if self.countdown is not None and self.status is Status.STOPPING:
            parts.append(_indent(self.countdown(in_flight), "yellow"))
        if self.hint and not self.status.terminal:
            parts.append(_indent(self.hint, "yellow" if self.status is Status.STOPPING else "dim"))
        return Group(*parts)


def side_by_side(views: Iterable[RunDisplay]) -> Table:
    """Return the title lines of runs, one below the other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for view in views:
        grid.add_row(*view.cells())
    return grid


def _fact(name: str, value: str) -> Text:
    return Text.assemble((f"  {name}  ", "dim"), plain(value), overflow="ellipsis", no_wrap=True)


def _indent(text: str, style: str) -> RenderableType:
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
            return f"partial  {last_line(data.get('delta', data.get('value', '')))}"
        case EventType.PROGRESS:
            progress = data.get("data")
            pairs = [f"{key}={value}" for key, value in progress.items()] if isinstance(progress, dict) else []
            return f"progress  {one_line(' '.join([str(data.get('name')), *pairs]))}"
        case EventType.LATE:
            return f"late  it ended after all: {data.get('status')}"
        case _:
            return f"{event.type}  {last_line(data.get('message', data))}"


_LOOK_SECONDS = 0.5
_LAST_LOOK_SECONDS = 2.0  # a server may take its time


def follow(client: Connected, record: RunRecord, *, as_json: bool, after: int = 0) -> Exit:
    """Show the events of a run as they come, then how it ended. Ctrl-C stops watching, not the run."""
    try:
        if as_json:
            for event in client.events(record.id, after):
                screen.print_json(event, one_line=True)
        elif screen.is_live():
            _draw_run(client, record, after)
        else:
            for event in client.events(record.id, after):
                line = event_line(event)
                if line is not None:
                    screen.say(safe(f"{event.seq:>5}  {line}"))
    except KeyboardInterrupt:
        screen.say(f"the run goes on: stop it with `stoppable stop {formatting.short_id(record.id)}`")
        return Exit.INTERRUPTED
    final_record = client.get(record.id)
    if not as_json:
        conclude(final_record)
    return of_status(final_record.status)


def _draw_run(client: Connected, record: RunRecord, after: int) -> None:
    view = RunDisplay(record.name, record.id)
    view.hint = f"Ctrl-C leaves; `stoppable stop {formatting.short_id(record.id)}` stops it"
    with Live(view, console=screen.err(), refresh_per_second=8, transient=True), contextlib.ExitStack() as stack:
        for event in client.events(record.id, after):
            view.take(event)
            if view.status is Status.STOPPING and view.countdown is None:
                view.countdown = stack.enter_context(_StopWatch(client, record, view)).describe


class _StopWatch:
    """Asks what a stopping run waits for, on a thread: its events do not include those of its children."""

    def __init__(self, client: Connected, record: RunRecord, view: RunDisplay) -> None:
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

    def describe(self, in_flight: Sequence[str]) -> str:
        """Say why it is not over yet, as of the last answer."""
        receipt = self._receipt
        if receipt is None:
            return "stopping"
        return f"stopping ({receipt.mode}): {Countdown.of_receipt(receipt, in_flight).describe(screen.now())}"

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
        screen.note(formatting.render_receipt(record.receipt, record))
    else:
        title = formatting.render_status(record.status)
        screen.note(title.append(f"  {safe(record.name)} {formatting.short_id(record.id)}", style="dim"))
    if outcome is None:
        return
    if outcome.error is not None:
        screen.note(formatting.render_error(outcome.error))
    if outcome.result is not None:
        print_value(outcome.result)
    elif outcome.omitted:
        screen.say("; ".join(f"its {safe(name)} is not kept: {safe(why)}" for name, why in outcome.omitted.items()))


def print_value(value: object) -> None:
    """Print a result: without control characters on a terminal, unchanged into a file or pipe."""
    text = value_text(value)
    screen.out().file.write((safe(text) if screen.out().is_terminal else text) + "\n")
    screen.out().file.flush()


_TRY_AGAIN_SECONDS = 1.0


class PolledRuns:
    """The newest runs of a store, read again each time."""

    def __init__(self, client: StoreClient, limit: int) -> None:
        self._client, self._limit = client, limit

    def newest(self) -> Sequence[RunSummary]:
        """Return them as they are now."""
        return self._client.list(limit=self._limit).runs

    def wait(self, seconds: float) -> None:
        """Wait before the next read."""
        threading.Event().wait(seconds)


class PushedRuns:
    """The newest runs of a server, which reports each change."""

    def __init__(self, client: Calls, limit: int) -> None:
        self._client, self._limit = client, limit
        self._runs: dict[str, RunSummary] = {run.id: run for run in client.list(limit=limit).runs}
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._news = threading.Event()
        threading.Thread(target=self._follow, name="stoppable-watch", daemon=True).start()

    def newest(self) -> Sequence[RunSummary]:
        """Return them as they are now, or raise the error of the connection."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return sorted(self._runs.values(), key=lambda run: run.created_at, reverse=True)[: self._limit]

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most so long."""
        self._news.wait(seconds)
        self._news.clear()

    def _follow(self) -> None:
        while True:
            try:
                for change in self._client.changes():
                    self._take(change)
            except Exception as error:
                with self._lock:
                    self._error = error
                self._news.set()
                threading.Event().wait(_TRY_AGAIN_SECONDS)

    def _take(self, change: Change) -> None:
        newest = self._client.list(limit=self._limit).runs if change.is_reset else ()
        with self._lock:
            self._error = None
            if change.is_reset:
                self._runs = {run.id: run for run in newest}
            run = change.run
            if run is not None and not (run.id in self._runs and self._runs[run.id].over and not run.over):
                self._runs[run.id] = run  # a change that is older than the list must not bring a run back to life
            for run_id, summary in self._runs.items():
                if run_id in change.in_flight or change.is_all:
                    self._runs[run_id] = replace(summary, in_flight=change.in_flight.get(run_id, ()))
            for old in sorted(self._runs.values(), key=lambda run: run.created_at)[: -self._limit]:
                del self._runs[old.id]
        self._news.set()


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
    from stoppable.cli.store_client import StoreClient  # noqa: PLC0415 - it brings the engine

    with options.connect(url, store) as client:
        if run is not None:
            raise typer.Exit(follow(client, options.find(client, run), as_json=as_json))
        client.list(limit=1)  # an error is better said before the screen is taken
        runs = PolledRuns(client, limit) if isinstance(client, StoreClient) else PushedRuns(client, limit)
        try:
            if screen.is_live() and not as_json:
                _draw_runs(runs, interval)
            else:
                _print_changes(runs, interval, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(Exit.DONE) from None  # it is how one leaves


def _draw_runs(runs: PolledRuns | PushedRuns, interval: float) -> None:
    console = screen.err()
    with screen.quiet_keyboard(), Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            live.update(_runs_page(runs), refresh=True)
            runs.wait(interval)


def _runs_page(runs: PolledRuns | PushedRuns) -> RenderableType:
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


def _print_changes(runs: PolledRuns | PushedRuns, interval: float, *, as_json: bool) -> None:
    """Print a line for every run that is new or has another status; for files, pipes and programs."""
    last_seen: dict[str, RunSummary] = {}
    while True:
        for record in reversed(runs.newest()):
            before = last_seen.get(record.id)
            if before is not None and (before.status, before.ended_late) == (record.status, record.ended_late):
                continue
            last_seen[record.id] = record
            if as_json:
                screen.print_json(record, one_line=True)
            else:
                line = Text.assemble(f"{formatting.short_id(record.id)}  ")
                line.append_text(formatting.render_status(record.status, record.ended_late))
                screen.show(line.append(f"  {one_line(formatting.headline(record, screen.now()))}"))
        runs.wait(interval)

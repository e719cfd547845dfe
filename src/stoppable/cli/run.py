"""``stoppable run``: one agent in this terminal, with Ctrl-C as its stop button."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer
from rich.live import Live

from stoppable import _secrets
from stoppable._core import clock
from stoppable._core.policy import Limits
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.state import PRESSES, Mode, Status
from stoppable._engine.agent_functions import name_of
from stoppable._engine.handle import RunHandle
from stoppable._engine.plain.install import instrument
from stoppable.cli import load, options, screen
from stoppable.cli.countdown import Countdown
from stoppable.cli.exits import Exit, of_status, reports_errors, write_nowhere
from stoppable.cli.following import conclude
from stoppable.cli.output import harmless_output, quiet_keyboard
from stoppable.cli.printer import Printer
from stoppable.cli.text import safe, value_text
from stoppable.cli.view import RunView, event_line
from stoppable.errors import RunEnded
from stoppable.records import Event, EventType, RunRecord
from stoppable.supervisor import Supervisor

_HINTS = {
    None: "Ctrl-C stops it; calls in flight may finish",
    Mode.GRACEFUL: "Ctrl-C again cuts off the calls in flight; clean-up runs",
    Mode.IMMEDIATE: "Ctrl-C again kills it; clean-up may not run",
    Mode.KILL: "Ctrl-C again leaves at once; parts of the run may stay alive",
}
_LOOK_SECONDS = 0.1
_LAST_ITEMS_SECONDS = 1.0  # of a run that is over


@reports_errors
def run(
    target: options.Target,
    given: options.InputArgument = None,
    store: options.Store = None,
    owner: options.Owner = None,
    label: options.Labels = None,
    seconds: options.Seconds = None,
    isolated: Annotated[
        bool, typer.Option("--process", help="Run it in a process, which can always be ended.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Run an agent here, with Ctrl-C as its stop button.

    Once stops it gracefully: calls in flight may finish. Twice cuts them off. Three times kills the run.
    """
    console = _Console(as_json=as_json)
    # A module may print while it is imported; nothing that an agent starts inherits secrets.
    with console.output(), _secrets.taken(store):
        instrument()  # before the agent is imported, which may undo it
        agent = load.agent(target)
    args, kwargs = load.call(agent, options.arguments(given))
    start = functools.partial(
        Supervisor.start,
        owner=owner,
        labels=options.labels(label),
        limits=None if seconds is None else Limits(seconds=seconds),
        isolation="process" if isolated else "thread",
    )
    # The agent gets a thread, this one stays free for signals and the screen: an agent that blocks cannot hold them up.
    with _secrets.taken(store):
        record = asyncio.run(_run(start, functools.partial(agent, *args, **kwargs), store, console))
    code = console.conclude(record)
    # Let the system handle Ctrl-C again: a thread that the agent left behind cannot swallow it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if record.status is Status.LOST:
        _leave(code)
    raise typer.Exit(code)


async def _run(start: Any, agent: functools.partial[Any], store: str | None, console: _Console) -> RunRecord:
    async with Supervisor(store) as supervisor:
        with console.screen(name_of(agent)):  # before the agent can print
            handle: RunHandle[Any] = await start(supervisor, agent)
            with console.buttons(handle):
                looking = asyncio.create_task(console.look())
                printing = console.printing_items(handle) if load.yields(agent) else None
                try:
                    async for event in supervisor.events(handle.id):
                        console.take(event)
                    if printing:
                        await console.wait_for_last_items(printing)
                finally:
                    for task in filter(None, (looking, printing)):
                        task.cancel()
        return await supervisor.get(handle.id)


class _Console:
    """Handles Ctrl-C and draws the screen of one run."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._presses = 0
        self._terminated = False
        self._is_live = screen.is_live() and not as_json
        self._view = RunView("")
        self._leave_screen: Callable[[], object] = lambda: None
        self._refresh: Callable[[], object] = lambda: None
        self._handle: RunHandle[Any] | None = None
        self._prints_items = False

    # Buttons

    @contextlib.contextmanager
    def buttons(self, handle: RunHandle[Any]) -> Iterator[None]:
        """Make Ctrl-C stop the run, harder each time, and SIGTERM stop it gracefully."""
        self._handle = handle
        self._view.run_id = handle.id
        if not self._is_live and not self._as_json:
            screen.say(safe(f"running {handle.run.name} as {handle.id}; {_HINTS[None]}"))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._press)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGTERM)

    def _press(self) -> None:
        if self._presses >= len(PRESSES):
            self._leave_screen()
            screen.say("left at once; parts of the run may still be alive")
            _leave(Exit.INTERRUPTED)
        mode = PRESSES[self._presses]
        self._presses += 1
        self._stop(mode, Reason.of("Ctrl-C", kind=ReasonKind.USER))

    def _terminate(self) -> None:
        self._terminated = True
        self._stop(Mode.GRACEFUL, Reason.of("SIGTERM", kind=ReasonKind.SHUTDOWN))

    def _stop(self, mode: Mode, reason: Reason) -> None:
        assert self._handle is not None, "there is a run to stop"
        receipt = self._handle.run.stop(mode, reason)
        self._view.hint = _HINTS[mode]
        self._view.countdown = self._countdown
        self._view.become(receipt.status)
        self._show_in_flight()
        self._refresh()  # at once: it may be over before the next time
        if not self._is_live and not self._as_json:
            screen.say(f"{self._countdown(receipt.in_flight)}; {_HINTS[mode]}")

    def _countdown(self, in_flight: Sequence[str]) -> str:
        assert self._handle is not None, "it was stopped"
        receipt = self._handle.run.receipt
        assert receipt is not None, "it was stopped"
        return f"stopping ({receipt.mode}): {Countdown.of_receipt(receipt, in_flight).told(clock.now())}"

    # Screen

    def output(self) -> contextlib.AbstractContextManager[None]:
        """Make what an agent writes harmless to a terminal, and keep it out of JSON."""
        console = screen.err() if self._as_json or screen.err().is_terminal else screen.out()
        return harmless_output(console, is_beside=self._as_json)

    @contextlib.contextmanager
    def screen(self, name: str) -> Iterator[None]:
        """Show the run while the block runs."""
        self._view = RunView(name)
        self._view.hint = _HINTS[None]
        if not self._is_live:
            with self.output():
                yield
            return
        live = Live(
            self._view,
            console=screen.err(),
            refresh_per_second=10,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with contextlib.ExitStack() as stack:
            stack.enter_context(quiet_keyboard())
            stack.enter_context(live)
            stack.enter_context(harmless_output(live.console))
            self._leave_screen, self._refresh = stack.close, live.refresh
            yield

    async def look(self) -> None:
        """Keep what is in flight up to date; the events of the run do not include those of its children."""
        while True:
            self._show_in_flight()
            await asyncio.sleep(_LOOK_SECONDS)

    def printing_items(self, handle: RunHandle[Any]) -> asyncio.Task[None]:
        """Print what a generator yields; its events are not shown in addition."""
        self._prints_items = True
        return asyncio.create_task(self._print_while_read(handle))

    async def wait_for_last_items(self, printing: asyncio.Task[None]) -> None:
        """Wait until all that the generator yielded is printed; after Ctrl-C or SIGTERM no longer than a second."""
        while not printing.done():
            await asyncio.wait([printing], timeout=_LAST_ITEMS_SECONDS)
            if self._presses or self._terminated:
                return
        printing.result()

    async def _print_while_read(self, handle: RunHandle[Any]) -> None:
        """Print what a generator yields, as it comes, and stop it when the reader of the output has gone."""
        try:
            await self._print_items(handle)
        except BrokenPipeError:
            write_nowhere()
            self._stop(Mode.GRACEFUL, Reason.of("its output was closed", kind=ReasonKind.DISCONNECT))

    async def _print_items(self, handle: RunHandle[Any]) -> None:
        """Print texts as they are, and anything else as lines of JSON."""
        text, printer = "", Printer()
        with contextlib.suppress(RunEnded):  # conclude() prints how it ended
            async for item in handle.stream():
                if self._as_json:
                    continue
                text = item if isinstance(item, str) else f"{value_text(item)}\n"
                self._view.say(text)
                printer.print(text)
        if text and not text.endswith("\n"):
            printer.print("\n")
        await printer.finish()

    def _show_in_flight(self) -> None:
        assert self._handle is not None, "there is a run to show"
        self._view.in_flight = self._handle.run.in_flight or None

    def take(self, event: Event) -> None:
        """Take in an event."""
        if self._prints_items and event.data.get("name") == "item":
            return  # it is printed
        self._view.take(event)
        if self._as_json:
            return
        if not self._is_live and event.type in {EventType.PROGRESS, EventType.LOG}:
            screen.say(safe(event_line(event) or ""))

    # The end

    def conclude(self, record: RunRecord) -> Exit:
        """Print how it ended, and return the exit code."""
        if self._as_json:
            screen.print_json(record)
        else:
            conclude(record)
        if record.status is Status.STOPPED:
            if self._presses:
                return Exit.INTERRUPTED
            if self._terminated:
                return Exit.TERMINATED
        return of_status(record.status)


def _leave(code: Exit) -> NoReturn:
    """End this process now: Python would wait for a thread that cannot be ended."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)

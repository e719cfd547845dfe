"""``stoppable run``: one agent in this terminal, with Ctrl-C as its stop button, and what it writes."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import functools
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from stoppable import _secrets
from stoppable._core import clock
from stoppable._core.values import PRESSES, Limits, Mode, Reason, ReasonKind, Status
from stoppable._engine import control
from stoppable._engine.agent_functions import name_of
from stoppable._engine.handle import RunHandle
from stoppable._engine.instrumentation.install import instrument
from stoppable.cli import find_agent, options, screen
from stoppable.cli.exits import Exit, of_status, reports_errors, write_nowhere
from stoppable.cli.formatting import Countdown
from stoppable.cli.live_view import RunDisplay, conclude, event_line
from stoppable.cli.text import safe, value_text
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
_RECEIPT_SECONDS = 1.0  # after one Ctrl-C too many, for a run that is over


@reports_errors
def run(
    target: options.Target,
    text: options.InputArgument = None,
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
    with console.output(), _secrets.hide(store):
        instrument()  # before the agent is imported, which may undo it
        agent = find_agent.agent(target)
    args, kwargs = find_agent.call(agent, options.arguments(text))
    start = functools.partial(
        Supervisor.start,
        owner=owner,
        labels=options.labels(label),
        limits=None if seconds is None else Limits(seconds=seconds),
        isolation="process" if isolated else "thread",
    )
    # The agent gets a thread, this one stays free for signals and the screen: an agent that blocks cannot hold them up.
    with _secrets.hide(store):
        status, code = asyncio.run(_run(start, functools.partial(agent, *args, **kwargs), store, console))
    # Let the system handle Ctrl-C again: a thread that the agent left behind cannot swallow it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if status is Status.LOST:
        control.wait_for_hooks()
        _leave(code)
    raise typer.Exit(code)


async def _run(start: Any, agent: functools.partial[Any], store: str | None, console: _Console) -> tuple[Status, Exit]:
    async with Supervisor(store) as supervisor:
        with console.screen(name_of(agent)):  # before the agent can print
            handle: RunHandle[Any] = await start(supervisor, agent)
            console.take_signals(handle)
            looking = asyncio.create_task(console.look())
            printing = console.printing_items(handle) if find_agent.yields(agent) else None
            try:
                async for event in supervisor.events(handle.id):
                    console.take(event)
                if printing:
                    await console.wait_for_last_items(printing)
            finally:
                for task in filter(None, (looking, printing)):
                    task.cancel()
        record = await supervisor.get(handle.id)
        # In the loop, which handles Ctrl-C: no press may cut off the receipt.
        return record.status, console.conclude(record)


class _Console:
    """Handles Ctrl-C and draws the screen of one run."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._presses = 0
        self._terminated = False
        self._is_live = screen.is_live() and not as_json
        self._view = RunDisplay("")
        self._leave_screen: Callable[[], object] = lambda: None
        self._refresh: Callable[[], object] = lambda: None
        self._handle: RunHandle[Any] | None = None
        self._prints_items = False

    # Buttons

    def take_signals(self, handle: RunHandle[Any]) -> None:
        """Make Ctrl-C stop the run, harder each time, and SIGTERM stop it gracefully, until the loop is closed."""
        self._handle = handle
        self._view.run_id = handle.id
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._press)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        if not self._is_live and not self._as_json:
            screen.say(safe(f"running {handle.run.name} as {handle.id}; {_HINTS[None]}"))

    def _press(self) -> None:
        if self._presses >= len(PRESSES):
            # If the run is over, its receipt is about to be printed, unless the store or the terminal hangs.
            asyncio.get_running_loop().call_later(_RECEIPT_SECONDS if self._is_over() else 0, self._leave_at_once)
            return
        mode = PRESSES[self._presses]
        self._presses += 1
        self._stop(mode, Reason.of("Ctrl-C", kind=ReasonKind.USER))

    def _leave_at_once(self) -> None:
        self._leave_screen()
        screen.say("left at once" if self._is_over() else "left at once; parts of the run may still be alive")
        _leave(Exit.INTERRUPTED)

    def _terminate(self) -> None:
        self._terminated = True
        self._stop(Mode.GRACEFUL, Reason.of("SIGTERM", kind=ReasonKind.SHUTDOWN))

    def _stop(self, mode: Mode, reason: Reason) -> None:
        assert self._handle is not None, "there is a run to stop"
        if self._is_over():
            return
        receipt = self._handle.run.stop(mode, reason)
        self._view.hint = _HINTS[mode]
        self._view.countdown = self._countdown
        self._view.become(receipt.status)
        self._show_in_flight()
        self._refresh()  # at once: it may be over before the next time
        if not self._is_live and not self._as_json:
            screen.say(f"{self._countdown(receipt.in_flight)}; {_HINTS[mode]}")

    def _is_over(self) -> bool:
        assert self._handle is not None, "there is a run"
        return self._handle.run.outcome is not None

    def _countdown(self, in_flight: Sequence[str]) -> str:
        assert self._handle is not None, "it was stopped"
        receipt = self._handle.run.receipt
        assert receipt is not None, "it was stopped"
        return f"stopping ({receipt.mode}): {Countdown.of_receipt(receipt, in_flight).describe(clock.now())}"

    # Screen

    def output(self) -> contextlib.AbstractContextManager[None]:
        """Make what an agent writes harmless to a terminal, and keep it out of JSON."""
        console = screen.err() if self._as_json or screen.err().is_terminal else screen.out()
        return harmless_output(console, is_beside=self._as_json)

    @contextlib.contextmanager
    def screen(self, name: str) -> Iterator[None]:
        """Show the run while the block runs."""
        self._view = RunDisplay(name)
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
            stack.enter_context(screen.quiet_keyboard())
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
        """Update the screen with an event; without a live screen, print progress and logs."""
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


_LAST_WORDS_SECONDS = 2.0  # a process that is left behind may go on writing


@contextlib.contextmanager
def harmless_output(console: Console, *, is_beside: bool = False) -> Iterator[None]:
    """Send what is written to the terminal through a console while the block runs; a file or pipe gets it unchanged.

    Works on file descriptors, because processes and C code do not use ``sys.stdout``. The console has a duplicate.
    With ``is_beside`` stdout goes through the console wherever it leads, because it is kept for JSON.
    """
    descriptors = [descriptor for descriptor in (1, 2) if os.isatty(descriptor) or (is_beside and descriptor == 1)]
    read, write = os.pipe()
    over, end = os.pipe()
    _flush()
    originals = {descriptor: os.dup(descriptor) for descriptor in descriptors}
    for descriptor in descriptors:
        os.dup2(write, descriptor)
    os.close(write)
    reader = threading.Thread(target=_pass_on, args=(read, over, console), name="stoppable-output", daemon=True)
    reader.start()
    try:
        yield
    finally:
        _flush()
        for descriptor, original in originals.items():
            os.dup2(original, descriptor)
            os.close(original)
        os.close(end)
        reader.join(_LAST_WORDS_SECONDS)


def _pass_on(read: int, over: int, console: Console) -> None:
    """Print what is written until every writer has closed the pipe, or the block has ended and the pipe is empty."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while read in select.select([read, over], [], [])[0] and (data := os.read(read, 65536)):
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        if lines:
            _print(console, lines)
        rest = rest[rest.rstrip("\r").rfind("\r") + 1 :]  # a bar may draw over itself for hours
    if rest:
        _print(console, [rest])
    os.close(read)
    os.close(over)


def _print(console: Console, lines: list[str]) -> None:
    """Print lines at once: each print draws the live screen anew."""
    # What a bar that draws over itself would leave.
    visible_lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines)
    console.print(Text(safe("\n".join(visible_lines))), soft_wrap=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


class Printer:
    """Writes texts to the standard output in their order."""

    def __init__(self) -> None:
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._end_result: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        # A daemon: it may be stuck for good.
        threading.Thread(target=self._work, name="stoppable-printer", daemon=True).start()

    def print(self, text: str) -> None:
        """Write a text soon, or raise what an earlier one failed with."""
        if self._end_result.done() and (error := self._end_result.result()) is not None:
            raise error
        self._texts.put(text)

    async def finish(self) -> None:
        """Wait until all is written, or raise what it failed with."""
        self._texts.put(None)
        if (error := await self._end_result) is not None:
            raise error

    def _work(self) -> None:
        failure = None
        try:
            while (text := self._texts.get()) is not None:
                _write(text)
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._end_result.get_loop().call_soon_threadsafe(self._end, failure)

    def _end(self, failure: Exception | None) -> None:
        if not self._end_result.done():  # the wait for it may have been cancelled
            self._end_result.set_result(failure)


def _write(text: str) -> None:
    """Write below the buffer of the output: while this is stuck, its lock would hold up every other print."""
    stdout = sys.stdout
    data = memoryview(text.encode(stdout.encoding, stdout.errors or "strict"))
    stdout.flush()  # what the agent printed before
    raw = getattr(stdout.buffer, "raw", stdout.buffer)
    while data:
        data = data[raw.write(data) :]

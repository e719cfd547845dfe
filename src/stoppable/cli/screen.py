"""The terminal: one console for results, one for everything else."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import termios
import time
from collections.abc import Iterator
from functools import cache
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from stoppable.cli.text import safe
from stoppable.records import to_json

_WIDE = 200  # in a file or pipe nothing needs to fit a screen


@cache
def out() -> Console:
    """Return the console of stdout; markup in a text has no effect on it."""
    return _make_console(sys.stdout)


@cache
def err() -> Console:
    """Return the console of stderr."""
    return _make_console(sys.stderr)


def _make_console(file: TextIO) -> Console:
    # A duplicate of the descriptor: `run` redirects what an agent writes to the first two.
    with contextlib.suppress(OSError, ValueError):  # in a test it may have none
        file = os.fdopen(os.dup(file.fileno()), "w", encoding=file.encoding, errors=file.errors)
    no_color = True if os.environ.get("NO_COLOR") else None
    width = None if file.isatty() or os.environ.get("COLUMNS") else _WIDE
    return Console(file=file, markup=False, highlight=False, emoji=False, no_color=no_color, width=width)


def now() -> float:
    """Return the wall-clock time, as in the timestamps of records."""
    return time.time()  # noqa: TID251


def is_live() -> bool:
    """Return whether stderr is a terminal that can redraw lines."""
    return err().is_terminal and not err().is_dumb_terminal


def show(what: RenderableType) -> None:
    """Print a result to stdout; into a file or pipe without trailing blanks."""
    _print(out(), what)


def note(what: RenderableType) -> None:
    """Print what is not the result, such as a receipt, to stderr, in the same way."""
    _print(err(), what)


def _print(console: Console, what: RenderableType) -> None:
    if console.is_terminal:
        console.print(what)
        return
    with console.capture() as caught:
        console.print(what)
    console.file.write("\n".join(line.rstrip() for line in caught.get().split("\n")))
    console.file.flush()


def say(message: str) -> None:
    """Print a line to stderr, without control characters."""
    err().print(Text(safe(message)), soft_wrap=True)


def print_json(value: Any, *, one_line: bool = False) -> None:
    """Print JSON in ASCII, which is safe on every terminal."""
    sys.stdout.write(json.dumps(to_json(value), indent=None if one_line else 2) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def quiet_keyboard() -> Iterator[None]:
    """Keep the terminal from writing ``^C`` into a live screen; the key works as ever."""
    try:
        before = termios.tcgetattr(sys.stdin)
        is_ours = os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (termios.error, ValueError, OSError, TypeError):  # no terminal, or none at all
        before, is_ours = [], False
    if not is_ours:  # in the background a change of the terminal would stop this process
        yield
        return
    during = [*before[:3], before[3] & ~termios.ECHOCTL, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, during)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

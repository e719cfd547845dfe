"""Shows what an agent and its processes write above a live screen, without control characters."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import sys
import termios
import threading
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from stoppable.cli.text import safe

_LAST_WORDS_SECONDS = 2.0  # a process that is left behind may go on writing


@contextlib.contextmanager
def harmless_output(console: Console, *, is_beside: bool = False) -> Iterator[None]:
    """Send what is written to the terminal through a console while the block runs; a file or pipe gets it unchanged.

    Works on file descriptors, because processes and C code do not use ``sys.stdout``. The console has a duplicate.
    With ``is_beside`` stdout goes through the console wherever it leads, because it is kept for JSON.
    """
    taken = [descriptor for descriptor in (1, 2) if os.isatty(descriptor) or (is_beside and descriptor == 1)]
    read, write = os.pipe()
    over, end = os.pipe()
    _flush()
    kept = {descriptor: os.dup(descriptor) for descriptor in taken}
    for descriptor in taken:
        os.dup2(write, descriptor)
    os.close(write)
    reader = threading.Thread(target=_pass_on, args=(read, over, console), name="stoppable-output", daemon=True)
    reader.start()
    try:
        yield
    finally:
        _flush()
        for descriptor, original in kept.items():
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
    shown = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines)  # what a bar that draws over itself would leave
    console.print(Text(safe("\n".join(shown))), soft_wrap=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


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

"""What an agent writes while a live screen is shown: above it, and harmless, also what its processes write."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import termios
import threading
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from stoppable.cli.text import safe

_LAST_WORDS_SECONDS = 0.5


@contextlib.contextmanager
def harmless_output(console: Console) -> Iterator[None]:
    """Send what is written to the terminal through a console while the block runs; a file or pipe gets it untouched.

    At the level of descriptors: processes and C code do not ask ``sys.stdout``. The console writes to one of its own.
    """
    taken = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
    read, write = os.pipe()
    _flush()
    kept = {descriptor: os.dup(descriptor) for descriptor in taken}
    for descriptor in taken:
        os.dup2(write, descriptor)
    os.close(write)
    reader = threading.Thread(target=_pass_on, args=(read, console), name="stoppable-output", daemon=True)
    reader.start()
    try:
        yield
    finally:
        _flush()
        for descriptor, original in kept.items():
            os.dup2(original, descriptor)
            os.close(original)
        reader.join(_LAST_WORDS_SECONDS)  # a process that is left behind may keep the other end open


def _pass_on(read: int, console: Console) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while data := os.read(read, 65536):
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        for line in lines:
            _print(console, line)
    if rest:
        _print(console, rest)
    os.close(read)


def _print(console: Console, line: str) -> None:
    shown = line.rstrip("\r").rsplit("\r", 1)[-1]  # what a bar that draws over itself would leave
    console.print(Text(safe(shown)), soft_wrap=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


@contextlib.contextmanager
def quiet_keyboard() -> Iterator[None]:
    """Keep the terminal from writing ``^C`` into a live screen; the key works as ever."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, ValueError, OSError):  # no terminal, or none at all
        yield
        return
    during = [*before[:3], before[3] & ~termios.ECHOCTL, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, during)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

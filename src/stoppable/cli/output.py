"""What an agent prints while a live screen is shown: above it, and harmless."""

from __future__ import annotations

import contextlib
import io
import sys
import termios
import threading
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.text import Text

from stoppable.cli.text import safe


class _Harmless(io.TextIOBase):
    """Passes whole lines on to a console, without the power over the terminal that escape sequences have."""

    def __init__(self, console: Console, beneath: TextIO) -> None:
        self._console = console
        self._beneath = beneath
        self._lock = threading.Lock()
        self._rest = ""

    def write(self, text: str) -> int:
        """Print the lines that are complete."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._console.print(Text(safe(line)), soft_wrap=True)
        return len(text)

    def finish(self) -> None:
        """Print a last line that has no end."""
        if self._rest:
            self.write("\n")

    def fileno(self) -> int:
        """Return the real one, for whoever starts a process with it."""
        return self._beneath.fileno()

    def isatty(self) -> bool:
        """Return whether a person reads it."""
        return self._beneath.isatty()

    def writable(self) -> bool:
        """Return that it can be written to."""
        return True


@contextlib.contextmanager
def harmless_output(console: Console) -> Iterator[None]:
    """Send what is printed to a terminal through a console while the block runs; a file or pipe gets it untouched."""
    proxies: list[_Harmless] = []
    before = sys.stdout, sys.stderr
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        if stream.isatty():
            proxy = _Harmless(console, stream)
            proxies.append(proxy)
            setattr(sys, name, proxy)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for proxy in proxies:
            proxy.finish()


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

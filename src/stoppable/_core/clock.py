"""The monotonic clock of the process; tests replace it with a fake one."""

from __future__ import annotations

import time
from collections.abc import Callable

now: Callable[[], float] = time.monotonic
"""Seconds on a monotonic clock. Call it as ``clock.now()``, so that tests can replace it."""


class Coarse:
    """The time of the control thread's last turn: at most ``COARSE_SECONDS`` old, and free to read."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: float = now()


COARSE_SECONDS = 0.25
coarse = Coarse()


def use(tell: Callable[[], float]) -> Callable[[], float]:
    """Replace the clock and return the previous one."""
    global now
    previous, now = now, tell
    coarse.now = now()
    return previous

"""The monotonic clock of the process; tests replace it with a fake one."""

from __future__ import annotations

import time
from collections.abc import Callable

now: Callable[[], float] = time.monotonic
"""Seconds on a monotonic clock. Call it as ``clock.now()``, so that tests can replace it."""


def use(tell: Callable[[], float]) -> Callable[[], float]:
    """Replace the clock and return the previous one."""
    global now
    previous, now = now, tell
    return previous

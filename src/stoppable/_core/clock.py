"""The monotonic clock of the process; tests put a fake one in its place."""

from __future__ import annotations

import time
from collections.abc import Callable

now: Callable[[], float] = time.monotonic
"""Seconds on a clock that never goes back. Call it as ``clock.now()``, so that a test's clock is seen."""


def use(tell: Callable[[], float]) -> Callable[[], float]:
    """Put a clock in place and return the one that was there."""
    global now
    previous, now = now, tell
    return previous

"""The monotonic clock of the process; tests put a fake one in its place."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time."""

    def now(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...


class MonotonicClock:
    """The system's monotonic clock."""

    def now(self) -> float:
        """Return seconds since some fixed point."""
        return time.monotonic()


_clock: Clock = MonotonicClock()


def now() -> float:
    """Return the time of the clock in use."""
    return _clock.now()


def use(clock: Clock) -> Clock:
    """Put a clock in place and return the one that was there."""
    global _clock
    previous, _clock = _clock, clock
    return previous

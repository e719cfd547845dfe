"""Measures whether event loops turn: the time of a rung counts only while code can act on it."""

from __future__ import annotations

import collections
import math
import os
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Iterable, Iterator

from stoppable._core import clock

LATE_SECONDS = 0.05
"""What is answered later than that was held up."""
_TIMES_KEPT = 1000

Times = collections.deque[tuple[float, float]]
"""Times, from and until, at which something could not run; the oldest are dropped."""


def new_times() -> Times:
    """Return an empty list of times."""
    return collections.deque(maxlen=_TIMES_KEPT)


def covered(times: Iterable[tuple[float, float]], since: float) -> float:
    """Return how many seconds since a moment are covered by times, which may overlap."""
    total, end = 0.0, since
    for begin, until in sorted(times):
        total += max(0.0, until - max(begin, end))
        end = max(end, until)
    return total


class Pulse:
    """Pings one event loop: one ping at a time, sent by the control thread and answered by the loop.

    A loop that was held up for one turn may have more such turns ahead. It then pings itself, until it turns quickly or
    the control thread is no longer interested: otherwise the time between two pings would count.
    """

    __slots__ = ("_loop", "_sent_at", "_stalls", "_wanted_until", "turned_at")

    def __init__(self, loop: AbstractEventLoop) -> None:
        key = id(loop)
        self._loop = weakref.ref(loop, lambda _: _pulses.pop(key, None))
        self._stalls = new_times()
        self._sent_at: float | None = None  # of the ping that was not answered
        self._wanted_until = -math.inf
        self.turned_at: float = -math.inf
        """When the last answered ping was sent: whatever was queued in the loop before that has been called."""

    def ping(self) -> None:
        """Send a ping, unless one is on its way."""
        loop = self._loop()
        if loop is None or self._sent_at is not None:
            return
        self._sent_at = clock.now()
        try:
            loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # it was closed: nothing has to act there any more
            self._sent_at, self.turned_at = None, math.inf

    def _answer(self) -> None:
        sent_at, now, loop = self._sent_at, clock.now(), self._loop()
        assert sent_at is not None, "one ping, one answer"
        assert loop is not None, "it calls this"
        is_late = now - sent_at > LATE_SECONDS
        if is_late:
            self._stalls.append((sent_at, now))
        self.turned_at = sent_at
        # Last: a stall that is read in between counts twice for a moment, but never not at all.
        if is_late and now < self._wanted_until:
            self._sent_at = now
            loop.call_soon(self._answer)
        else:
            self._sent_at = None

    def beat(self, pause: float) -> None:
        """Send a ping, unless the last one was sent within so many seconds; to be called about as often."""
        now = clock.now()
        self._wanted_until = now + 2 * pause
        if self.turned_at <= now - pause:
            self.ping()

    def stalls(self) -> Iterator[tuple[float, float]]:
        """Yield the times at which the loop did not turn."""
        sent_at, now = self._sent_at, clock.now()
        yield from list(self._stalls)
        if sent_at is not None and now - sent_at > LATE_SECONDS:
            yield sent_at, now

    def is_steady(self, since: float) -> bool:
        """Return whether the loop has turned since a moment, and was never held up."""
        return self.turned_at >= since and not any(until > since for _, until in self.stalls())


_pulses: dict[int, Pulse] = {}
os.register_at_fork(after_in_child=_pulses.clear)


def follow(loop: AbstractEventLoop) -> None:
    """Include a loop that executes runs."""
    if id(loop) not in _pulses:
        _pulses[id(loop)] = Pulse(loop)


def of(loop: AbstractEventLoop) -> Pulse | None:
    """Return the pulse of a loop."""
    return _pulses.get(id(loop))


def every() -> list[Pulse]:
    """Return the pulses of all loops that execute runs."""
    return list(_pulses.values())


def beat(pause: float) -> None:
    """Ping the loops that were not pinged within the last seconds."""
    for pulse in every():
        pulse.beat(pause)

"""A clock that a test moves."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from stoppable._core import clock
from stoppable._core.values import seconds as checked_seconds
from stoppable._engine import control
from stoppable._engine.control import ControlThread


class FakeClock:
    """A clock that stands still until ``advance()``; ladders, limits and ``sleep()`` inside the block use it.

    Everything that is due is called in order, on the thread that calls ``advance()``, before that returns.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._control = ControlThread(threaded=False)

    def now(self) -> float:
        """Return the time it was advanced to."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward, pausing at every moment at which something is due."""
        end = self._now + checked_seconds(seconds, "seconds")
        self._control.run_due()
        while (due := self._control.next_due()) is not None and due <= end:
            self._now = max(self._now, due)
            self._control.run_due()
        self._now = end
        clock.coarse.now = clock.now()

    def __enter__(self) -> Self:
        self._previous = clock.use(self.now), control.use(self._control)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        clock.use(self._previous[0])
        control.use(self._previous[1])

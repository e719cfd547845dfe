"""Whoever waits for the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoppable._core.metadata import Annotated
from stoppable._core.outcome import Outcome


class Awaited(Annotated):
    """How a run ended, and who is told that it did."""

    __slots__ = ("_on_end", "_outcome")

    _outcome: Outcome[Any] | None
    _on_end: list[Callable[[], None]]

    def _when_ended(self, wake: Callable[[], None]) -> None:
        """Call one of our own functions at the end, or at once if the run has ended."""
        self._on_end.append(wake)  # published first, checked then, as at the gate
        if self._outcome is not None and self._forget(wake):
            wake()

    def _forget(self, wake: Callable[[], None]) -> bool:
        """Take back a function that waits for the end; True for the one caller that did."""
        try:
            self._on_end.remove(wake)
        except ValueError:
            return False
        return True

    def _wake_waiters(self) -> None:
        waiters = self._on_end
        while waiters:
            try:
                wake = waiters.pop(0)
            except IndexError:
                break  # the last one was taken back just now
            wake()

"""The token: a read-only view of whether a run was stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoppable._core.reason import Reason

if TYPE_CHECKING:
    from stoppable._core.node import RunNode


class Token:
    """The read-only answer to whether a run was stopped, on any thread, for ever (G3)."""

    __slots__ = ("_run",)

    def __init__(self, run: RunNode) -> None:
        self._run = run

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped. Reading it does not count as noticing the stop; ``should_stop()`` does."""
        return self.reason is not None

    @property
    def reason(self) -> Reason | None:
        """Why the run was stopped, or None; the first reason stays."""
        stop = self._run.first_stop
        return None if stop is None else stop.reason

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Every reason given so far, the first one first."""
        return tuple(stop.reason for stop in self._run.stops())

    def should_stop(self) -> bool:
        """Return what ``stoppable.should_stop()`` returns inside the run; True counts as noticing the stop (delivery).

        For code that holds the token but does not belong to the run, such as a callback on a foreign thread. Calling it
        does not make the caller a part of the run.
        """
        if self._run.closed:
            self._run.deliver(raised=True)
        return self._run.closed

    def __repr__(self) -> str:
        return f"<Token of run {self._run.id}: {'stopped' if self.stopped else 'not stopped'}>"

"""The read-only view of whether a run has been told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoppable._core.reason import Reason

if TYPE_CHECKING:
    from stoppable._core.run import Run


class Token:
    """Tells, on any thread and for ever, whether its run was told to stop (G3); it cannot stop anything."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def stopped(self) -> bool:
        """Whether the run has been told to stop. Looking does not count as a delivery; ``should_stop()`` does."""
        return self.reason is not None

    @property
    def reason(self) -> Reason | None:
        """Why; the first reason stays."""
        stop = self._run._stop
        return None if stop is None else stop.reason

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Every reason given so far, the first one first."""
        return tuple(stop.reason for stop in self._run._stops())

    def should_stop(self) -> bool:
        """Answer as ``stoppable.should_stop()`` does inside the run, from anywhere: a True counts as a delivery.

        For code that holds the token and does not belong to the run, such as a callback on a foreign thread. Asking
        does not make the caller a part of the run.
        """
        if self._run._closed:
            self._run._deliver(raised=True)
        return self._run._closed

    def __repr__(self) -> str:
        return f"<Token of run {self._run.id}: {'stopped' if self.stopped else 'not stopped'}>"

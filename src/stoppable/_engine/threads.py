"""Threads as participants."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from stoppable._core.port import Participant
from stoppable._core.run import Run
from stoppable._core.state import Rung


class ThreadParticipant(Participant):
    """A thread that executes the body of a run. Nothing can end it but itself (N3)."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread = threading.current_thread()

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, Run]) -> None:
        """Do nothing: its next boundary raises, and if it never comes to one the run is lost."""

    def alive(self) -> bool:
        """Return whether the thread still runs."""
        return self._thread.is_alive()

    def describe(self) -> str:
        """Name the thread and the line where it is."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        where = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        return f"thread {self._thread.name}{where}"

    def shield_entered(self, until: float) -> None:
        """Do nothing: there is no CANCEL to hold back."""

    def shield_left(self) -> None:
        """Do nothing: there is no CANCEL to hold back."""

"""Threads as participants."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from stoppable._core.port import Participant
from stoppable._core.run import Run
from stoppable._core.state import Rung

live: set[ThreadParticipant] = set()
"""The threads that execute the body of a run now."""

_local = threading.local()


class ThreadParticipant(Participant):
    """A thread that executes a part of a run. Nothing can end it but itself (N3)."""

    __slots__ = ("_edges", "_thread")

    def __init__(self) -> None:
        self._thread = threading.current_thread()
        self._edges = 0

    def enter_edge(self) -> None:
        """Begin to execute the body of a run."""
        self._edges += 1
        live.add(self)

    def leave_edge(self) -> None:
        """End the body of a run; the thread may be in that of an outer one."""
        self._edges -= 1
        if not self._edges:
            live.discard(self)

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


def current() -> ThreadParticipant:
    """Return the participant for the calling thread."""
    try:
        participant: ThreadParticipant = _local.participant
    except AttributeError:
        participant = _local.participant = ThreadParticipant()
    return participant

"""The wait for a chunk, which INTERRUPT ends."""

from __future__ import annotations

from stoppable._core.node import RunNode
from stoppable._core.state import Rung
from stoppable._engine.tasks import TaskParticipant
from stoppable.errors import AgentStopped


class Pending:
    """A task that waits for a chunk, and the one cancel with which INTERRUPT may end the wait."""

    __slots__ = ("_cancelling", "_issued", "_reader", "_run")

    def __init__(self, reader: TaskParticipant, run: RunNode) -> None:
        self._reader = reader
        self._run = run
        self._cancelling = reader.task.cancelling()
        self._issued = False

    def cut(self) -> None:
        """Cancel the task while it is suspended in the read, so that the cancel arrives there.

        It counts as the CANCEL of the participant, which gets no other before KILL: a second one would break the
        clean-up that this one starts (G7).
        """
        reader = self._reader
        if self._run.first_stop is None or reader._shields:
            return  # the source is in a shield: CANCEL comes after it
        before = reader.issued
        reader._cancel(Rung.CANCEL, self._outermost())
        self._issued = reader.issued > before

    def _outermost(self) -> RunNode:
        """Return the outermost interrupted run of this task: the task unwinds to the end of that run."""
        outermost = self._run
        for run in self._run.lineage():
            if run.rung is None:
                break
            if self._reader in run.participants():
                outermost = run
        return outermost

    def take_back(self) -> bool:
        """Take our cancel back; True if there was one, and no foreign cancel besides (G9)."""
        if not self._issued:
            return False
        self._issued = False
        if self._reader.issued:  # otherwise a run edge inside the source took it back
            self._reader.issued -= 1
            self._reader.task.uncancel()
        others: int = self._reader.task.cancelling() - self._cancelling
        return others <= 0

    def stopped(self) -> AgentStopped:
        """Return the exception for the end of the wait.

        Unlike ``check()``, this does not mark the run as unwinding: no CANCEL can hit this clean-up.
        """
        stop = self._run.first_stop
        assert stop is not None, "only a stopped run is interrupted"
        stopped = AgentStopped(stop.target.id, stop.reason)
        stopped.by_force = True
        return stopped

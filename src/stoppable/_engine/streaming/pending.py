"""The wait for a chunk, and how INTERRUPT ends it."""

from __future__ import annotations

from stoppable._core.run import Run
from stoppable._core.state import Rung
from stoppable._engine.tasks import TaskParticipant
from stoppable.errors import AgentStopped


class Pending:
    """A task that waits for a chunk, and the one cancel that INTERRUPT may end the wait with."""

    __slots__ = ("_cancelling", "_issued", "_reader", "_run")

    def __init__(self, reader: TaskParticipant, run: Run) -> None:
        self._reader = reader
        self._run = run
        self._cancelling = reader.task.cancelling()
        self._issued = False

    def cut(self) -> None:
        """Cancel the task, which is suspended in the read: so that is where the cancel arrives.

        The participant takes it for its CANCEL and gets no other before KILL: a second one would break the clean-up
        that this one sets off (G7).
        """
        reader = self._reader
        if self._run._stop is None or reader._shields:
            return  # the source is in a shield: CANCEL waits for that, and then comes
        before = reader.issued
        reader._cancel(Rung.CANCEL, self._outermost())
        self._issued = reader.issued > before

    def _outermost(self) -> Run:
        """Return the outermost interrupted run that this task executes: it is unwinding to the end of that one."""
        outermost = self._run
        for run in self._run._lineage():
            if run._rung is None:
                break
            if self._reader in run._participants():
                outermost = run
        return outermost

    def take_back(self) -> bool:
        """Take our cancel back; True if there was one and nobody else's besides (G9)."""
        if not self._issued:
            return False
        self._issued = False
        if self._reader.issued:  # else a run edge inside the source has paid it back
            self._reader.issued -= 1
            self._reader.task.uncancel()
        others: int = self._reader.task.cancelling() - self._cancelling
        return others <= 0

    def stopped(self) -> AgentStopped:
        """Return what the wait ended with.

        The run is not noted as unwinding, unlike after ``check()``: no CANCEL can hit this clean-up.
        """
        stop = self._run._stop
        assert stop is not None, "only a stopped run is interrupted"
        stopped = AgentStopped(stop.target.id, stop.reason)
        stopped.by_force = True
        return stopped

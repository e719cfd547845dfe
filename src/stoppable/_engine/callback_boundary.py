"""A boundary that one callback enters and another leaves, as the callbacks of a framework do."""

from __future__ import annotations

from asyncio import CancelledError, Task
from typing import Any, Literal, TypeAlias, get_args

from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.values import Fate, Outcome, Rung, Status
from stoppable._engine.tasks import TaskParticipant
from stoppable.errors import InvalidArgument

UntilEnd: TypeAlias = Literal["task", "run"]
_BY_RUNG = {Rung.INTERRUPT: Fate.INTERRUPTED, Rung.CANCEL: Fate.CANCELLED, Rung.KILL: Fate.KILLED}


def enter(kind: str, name: str | None = None, *, until: UntilEnd = "task") -> Entered:
    """Enter a boundary; ``leave()`` on the result leaves it, from any callback, task or thread.

    Use it where the framework has only callbacks; otherwise use ``boundary``. It raises AgentStopped as ``boundary``
    does. Many frameworks have no callback for a call that was cancelled or failed. So the boundary is left
    automatically when the task that entered it is cancelled or fails, and when the run ends; with ``until="run"`` only
    when the run ends, for callbacks that the framework executes in tasks of their own.
    """
    if until not in get_args(UntilEnd):
        raise InvalidArgument(f"until is {until!r:.40}: use {' or '.join(get_args(UntilEnd))}")
    entry = Entered(kind, name)
    entry.__enter__()
    entry.begin(with_task=until == "task")
    return entry


class Entered(Boundary):
    """A boundary that ``enter()`` entered."""

    __slots__ = ("_entered", "_task")

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name
        self._run = None
        self._entered: RunNode | None = None
        self._task: Task[Any] | None = None

    def begin(self, *, with_task: bool) -> None:
        """Arrange that the boundary is left when the run ends, and when the current task does not end on its own."""
        run = self._entered = self._run
        if run is None:
            return
        holder = self.holder
        self.holder: Participant | None = None  # the run waits for its tasks, not for a callback
        if with_task and isinstance(holder, TaskParticipant):
            task: Task[Any] = holder.task
            self._task = task
            task.add_done_callback(self._with_task)
        run.when_ended(self._with_run)

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the boundary; ``error`` says how the effect ended. Leaving it again does nothing."""
        if self._task is not None:
            self._task.remove_done_callback(self._with_task)
        if self._entered is not None:
            self._entered.forget(self._with_run)
        self.__exit__(None if error is None else type(error), error, None)

    @property
    def fate(self) -> Fate | None:
        """What happened to the effect; a boundary that was never left ends with its run."""
        run = self._run
        if super().fate is None and run is not None and run.outcome is not None:
            self._fate = _fate_with(run.outcome)
        return super().fate

    def _with_task(self, task: Task[Any]) -> None:
        # Reading a task's exception would mark it as retrieved.
        error = CancelledError() if task.cancelled() else task._exception
        if error is not None:  # otherwise the task was that of the callback, and the call goes on
            self.leave(error)

    def _with_run(self) -> None:
        _ = self.fate  # a final receipt does not change
        run, self._run = self._run, None
        if run is not None:
            run.withdraw(self)


def _fate_with(outcome: Outcome[Any]) -> Fate:
    if outcome.status is Status.LOST:
        return Fate.ABANDONED
    if outcome.status is not Status.STOPPED:
        return Fate.FINISHED
    return Fate.CLOSED if outcome.rung is None else _BY_RUNG.get(outcome.rung, Fate.CLOSED)

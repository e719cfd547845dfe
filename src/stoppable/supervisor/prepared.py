"""A start in two steps: the run is in the store, and begins where and when it is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stoppable._core.reason import Reason, ReasonKind
from stoppable.supervisor.handles import KeptHandle, SupervisedHandle
from stoppable.supervisor.jobs import Job
from stoppable.supervisor.recorder import RunLog

if TYPE_CHECKING:
    from stoppable.supervisor import Supervisor

T = TypeVar("T")


class Prepared(Generic[T]):
    """A run that is in the store, so that it can be found and stopped, but has not begun.

    ``is_new`` is False if it must not be launched: an earlier request has started it, or its stop came first.
    """

    __slots__ = ("_job", "_log", "_supervisor", "id", "is_new")

    def __init__(self, supervisor: Supervisor, job: Job, log: RunLog | None) -> None:
        self._supervisor = supervisor
        self._job = job
        self._log = log
        self.id: str = job.run.id
        self.is_new: bool = log is not None

    def launch(self) -> KeptHandle[T]:
        """Start the run, once, and return its handle: an async agent on the running loop, a blocking one on a thread.

        If it cannot begin, the record says so, and the error is raised.
        """
        if self._log is None:
            return self._supervisor.handle(self.id)
        handle: KeptHandle[Any] = SupervisedHandle(
            self._supervisor, self._job.launch(), self._log, self._job.options.on_disconnect
        )
        return handle

    def abandon(self, reason: str = "it was never begun") -> None:
        """End the run instead of launching it: it is ``stopped``, and its body never runs."""
        if self._log is not None:
            self._job.run.stop(reason=Reason.of(reason, kind=ReasonKind.EXTERNAL))
            self._job.run.skip()

"""The errors of stoppable.

BaseException
└── AgentStopped                  inside a run: its code must stop
Exception
└── StoppableError
    ├── InvalidArgument           (ValueError) a mode, a time or an agent that makes no sense
    │   └── AgentNotFound         no agent has this name
    ├── ProcessNotStarted         (OSError) the system refused to start a command; nothing is running
    │   └── CommandNotFound       (FileNotFoundError) there is no such program
    ├── ProcessFailed             (CalledProcessError) check=True, and a code other than 0
    ├── AgentProcessDied          an agent process ended before its agent did
    ├── AgentError                the error of a run in another process, as text
    ├── RunNotFound               (LookupError) no run has this id, or it is not yours
    ├── RunConflict               the id belongs to a run that was started by a different request
    ├── RunHeld                   a hold refuses this start until it is released
    ├── HoldNotFound              (LookupError) no hold has this id
    ├── StoreError                (OSError) the store failed, or could not write
    ├── ServerUnreachable         (ConnectionError) no server answers the client
    ├── NotAllowed                (PermissionError) the server needs a key, or this key lacks a scope
    ├── ServerError               unexpected response from the server
    ├── Fenced                    the lease of this worker has expired; its runs were given up
    └── RunEnded                  the awaited run did not complete
        ├── RunStopped            it was stopped, and every part of it has ended
        ├── RunLost               it was stopped, and parts of it may still be alive
        └── RunFailed             its body raised; the error is the ``__cause__``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoppable._core.values import Outcome, Reason


class AgentStopped(BaseException):
    """Unwinds a run's code after a stop; raised by checks and boundaries, never seen outside a run.

    It derives from ``BaseException`` because agent frameworks swallow or retry an ``Exception`` and some
    re-wrap a ``CancelledError`` (docs/decisions/0001).
    """

    by_force = False
    """Whether INTERRUPT raised it inside an effect; otherwise a check or boundary raised it."""

    def __init__(self, target: str | None = None, reason: Reason | None = None) -> None:
        if target is None or reason is None:
            raise InvalidArgument(
                "AgentStopped is raised by stoppable after a stop: to stop the current run, call "
                "stoppable.current_run().stop(); to end it early, return"
            )
        super().__init__(target, reason)
        self.target: str = target
        self.reason: Reason = reason

    def __str__(self) -> str:
        return f"run {self.target} was told to stop: {self.reason}"


class StoppableError(Exception):
    """The base of all errors that stoppable raises outside a run."""


class InvalidArgument(StoppableError, ValueError):
    """An argument is invalid; the message says which values are valid."""


class AgentNotFound(InvalidArgument):
    """No agent has this name; the message lists those that exist."""


class AgentError(StoppableError):
    """The error of a run that another process executed; its type and traceback are in the message."""


_HOW = {"stopped": "was stopped", "lost": "is lost"}


class RunEnded(StoppableError):
    """The awaited run did not complete."""

    def __init__(self, run_id: str, outcome: Outcome[Any]) -> None:
        super().__init__(run_id, outcome)
        self.run_id = run_id
        self.outcome = outcome

    def __str__(self) -> str:
        detail = self.outcome.error if self.outcome.reason is None else self.outcome.reason
        return f"run {self.run_id} {_HOW.get(self.outcome.status, self.outcome.status)}: {detail}"


class RunStopped(RunEnded):
    """The run was stopped; its result or partial is in ``outcome``."""


class RunLost(RunEnded):
    """The run was stopped, but a part of it may still be alive; its receipt names that part."""


class RunFailed(RunEnded):
    """The run raised an error, which is ``outcome.error`` and the ``__cause__``."""


class RunNotFound(StoppableError, LookupError):
    """No run has this id, or the caller may not see it."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"no run {self.run_id!r}: `stoppable ls` lists the runs"


class RunConflict(StoppableError):
    """Another request has already started a run with this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"run {self.run_id!r} already exists, started by a different request: use another id"


class RunHeld(StoppableError):
    """A hold refuses new runs like this one."""

    def __init__(self, hold_id: str, reason: str = "", owner: str | None = None) -> None:
        super().__init__(hold_id, reason, owner)
        self.hold_id = hold_id
        self.reason = reason
        self.owner = owner
        """The owner whose runs the hold refuses; None if it may refuse those of others too."""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"new runs like this one are on hold{why}: release hold {self.hold_id} first"


class HoldNotFound(StoppableError, LookupError):
    """No hold has this id; it may have been released."""

    def __init__(self, hold_id: str) -> None:
        super().__init__(hold_id)
        self.hold_id = hold_id

    def __str__(self) -> str:
        return f"no hold {self.hold_id!r}: `stoppable holds` lists the holds"


class StoreError(StoppableError, OSError):
    """The store failed or could not write durably; the message says what to do. The call may be repeated."""


class Fenced(StoppableError):
    """The lease of the worker has expired, or the run has ended: further writes change nothing (G15)."""

    def __init__(self, worker_or_run: str) -> None:
        super().__init__(worker_or_run)
        self.worker_or_run = worker_or_run

    def __str__(self) -> str:
        return f"{self.worker_or_run} is fenced: its lease has expired, or its run has ended"

"""What became of an effect that was open when a stop came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoppable._core import participants
from stoppable._core.state import Fate, Rung
from stoppable.errors import AgentStopped

if TYPE_CHECKING:
    from stoppable._core.run import Run


def fate_of(run: Run, error: BaseException | None) -> Fate:
    """Say how an effect ended: by itself, by the stop, or by a rung, and by a rung only if it was that one."""
    if error is None:
        return Fate.FINISHED
    cause = _cause(error)
    if isinstance(cause, AgentStopped):
        return Fate.INTERRUPTED if cause.by_force else Fate.CLOSED
    if cause is not None:
        return Fate.KILLED if run._rung is not None and run._rung >= Rung.KILL else Fate.CANCELLED
    if isinstance(error, GeneratorExit):
        return Fate.CLOSED  # its reader left it
    return Fate.INTERRUPTED if run._was_interrupted else Fate.FINISHED


def _cause(error: BaseException) -> BaseException | None:
    """Return the stop or the cancel that ended an effect: the error itself, or what was on its way out then."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, (AgentStopped, *participants.cancels)):
        if isinstance(found, BaseExceptionGroup):  # of a task group: the stop, if that is all that its branches met
            causes = [_cause(inner) for inner in found.exceptions]
            if None not in causes:
                return next((cause for cause in causes if isinstance(cause, AgentStopped)), causes[0])
        found = found.__context__
    return found

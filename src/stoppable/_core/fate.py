"""Decides the fate of an effect that was open when its run was stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoppable._core import participants
from stoppable._core.state import Fate, Rung
from stoppable.errors import AgentStopped

if TYPE_CHECKING:
    from stoppable._core.node import RunNode


def fate_of(run: RunNode, error: BaseException | None) -> Fate:
    """Return how an effect ended: on its own, by the stop, or by a rung, but only if that rung really ended it."""
    if error is None:
        return Fate.FINISHED
    cause = _cause(error)
    if isinstance(cause, AgentStopped):
        return Fate.INTERRUPTED if cause.by_force else Fate.CLOSED
    is_forced = run.rung is not None and run.rung >= Rung.CANCEL
    if cause is not None and (cause is error or is_forced):  # else a cancel of its own, such as that of a timeout
        return Fate.KILLED if run.rung is not None and run.rung >= Rung.KILL else Fate.CANCELLED
    if isinstance(error, GeneratorExit):
        return Fate.CLOSED  # its consumer left it
    return Fate.INTERRUPTED if run.was_interrupted else Fate.FINISHED


def _cause(error: BaseException) -> BaseException | None:
    """Return the stop or cancel that ended an effect: the error itself, or the exception that was being handled."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, (AgentStopped, *participants.cancels)):
        if isinstance(found, BaseExceptionGroup):  # an exception group: the stop, if the group contains nothing else
            causes = [_cause(inner) for inner in found.exceptions]
            if None not in causes:
                return next((cause for cause in causes if isinstance(cause, AgentStopped)), causes[0])
        found = found.__context__
    return found

"""Whose cancel it is that a task has got."""

from __future__ import annotations

from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.run import Run
from stoppable._core.state import Mode
from stoppable._engine import tasks


def is_our_cancel() -> bool:
    """Return whether the cancel that the current task has got is one that we issued, and no other came as well."""
    participant = tasks.current()
    if participant is None or not participant.issued:
        return False
    return participant.others_now() <= participant.others


def passed_on(run: Run) -> bool:
    """Pass somebody else's cancel on to a run that is read or waited for, as it would hit a plain call (G9)."""
    if is_our_cancel():
        return False
    run.stop(Mode.IMMEDIATE, Reason.of("CancelledError from outside", kind=ReasonKind.EXTERNAL))
    return True

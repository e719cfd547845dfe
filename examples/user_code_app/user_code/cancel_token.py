"""What agent code may use to notice a stop: the names it has always had, now those of the run.

There is nothing to bind: whatever executes in a run, on any task or thread, has the token of that run.
"""

from __future__ import annotations

from collections.abc import Callable

import stoppable
from stoppable import AgentStopped, should_stop
from stoppable import check as check_should_stop

__all__ = [
    "AgentStopped",
    "CancelToken",
    "bind_token",
    "check_should_stop",
    "current_token",
    "reset_token",
    "should_stop",
]


class CancelToken:
    """The stop of one run."""

    def __init__(self, run: stoppable.Run) -> None:
        self._run = run

    def request_stop(self) -> None:
        """Stop the run, with every agent that it has called."""
        self._run.stop()

    def is_stopped(self) -> bool:
        """Return whether the run was told to stop."""
        return self._run.token.stopped

    def set_on_stop(self, callback: Callable[[], object] | None) -> None:
        """Call a function when the run is told to stop, at once if it was; any number may be set."""
        if callback is not None:
            stoppable.on_stop(callback)


def current_token() -> CancelToken | None:
    """Return the token of the current run."""
    run = stoppable.current_run()
    return None if run is None else CancelToken(run)


def bind_token(token: CancelToken) -> CancelToken:
    """Do nothing: a run is bound to its own token. For code that still calls it."""
    return token


def reset_token(bound: CancelToken) -> None:
    """Do nothing, as ``bind_token`` does."""

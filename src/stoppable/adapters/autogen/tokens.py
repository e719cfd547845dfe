"""AutoGen's cancellation token as a view of the run, and as a way to stop it.

AutoGen hangs when a token is cancelled while a tool works, and forgets the turn. So it never gets the token of the
user: a cancel of that one stops the run.
"""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from asyncio import Future
from collections.abc import Callable, Iterator
from typing import Any

from autogen_core import CancellationToken

import stoppable
from stoppable import Mode, Reason, ReasonKind, Run


class RunToken(CancellationToken):
    """What agents, models and tools get as their token inside a run.

    Cancelling it stops the run. It is cancelled as soon as the run was stopped, and its callbacks are called at the
    INTERRUPT rung. It leaves linked futures alone: whoever awaits one is cancelled by the ladder, once.
    """

    def __init__(self, run: Run, turn: Any = None) -> None:
        super().__init__()
        self.run: Run = run
        self.turn: Any = turn
        """The turn in which a tool was called; None outside a tool."""
        self.context: contextvars.Context = contextvars.copy_context()
        """The context of the run, for a runtime that was started elsewhere."""

    def cancel(self) -> None:
        """Stop the run."""
        _stop(self.run)

    def is_cancelled(self) -> bool:
        """Return whether the run was stopped, on any thread."""
        return self.run.token.should_stop()

    def link_future(self, future: Future[Any]) -> Future[Any]:
        """Return the future."""
        return future

    def call_back(self) -> None:
        """Call the callbacks, now and those that are added later."""
        super().cancel()


def _stop(run: Run) -> None:
    run.stop(Mode.IMMEDIATE, Reason.of("its CancellationToken was cancelled", kind=ReasonKind.EXTERNAL))


_tied: weakref.WeakKeyDictionary[CancellationToken, list[Run]] = weakref.WeakKeyDictionary()
"""The runs in which an agent or team that has got the token of a user is at work."""


def cancel(real: Callable[..., Any]) -> Callable[..., Any]:
    """Make the cancel of a token stop the runs that it belongs to."""

    def cancel(self: CancellationToken) -> None:
        for run in tuple(_tied.get(self, ())):
            _stop(run)  # before AutoGen takes the lock under which it calls callbacks
        real(self)

    return cancel


@contextlib.contextmanager
def token_for(run: Run, given: CancellationToken | None, turn: Any = None) -> Iterator[RunToken]:
    """Yield the token that takes the place of the given one in the block."""
    token = RunToken(run, turn)
    with stoppable.on_interrupt(token.call_back), _tie(given, run):
        yield token


@contextlib.contextmanager
def _tie(given: CancellationToken | None, run: Run) -> Iterator[None]:
    if given is None or isinstance(given, RunToken):
        yield
        return
    runs = _tied.setdefault(given, [])
    runs.append(run)
    try:
        if given.is_cancelled():
            _stop(run)
        yield
    finally:
        runs.remove(run)

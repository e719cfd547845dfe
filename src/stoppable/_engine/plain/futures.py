"""Futures of calls that belong to a run, and callbacks that its code registers."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from stoppable._core import context
from stoppable._core.boundary import LibraryBoundary
from stoppable._core.context import Outside, RunContext
from stoppable._engine.plain import scopes, whose
from stoppable._engine.plain.patches import is_on
from stoppable.errors import AgentStopped

_get = context.current.get
T = TypeVar("T")


class CallFuture(Future[T]):
    """The future of a call that belongs to a run.

    AgentStopped is only seen inside stopped runs: for all other code, a call that the stop ended was cancelled.
    """

    def cancelled(self) -> bool:
        """Return whether the call was cancelled, or ended by a stop that the caller does not know."""
        return super().cancelled() or (isinstance(self._exception, AgentStopped) and _stopped_run() is None)

    def result(self, timeout: float | None = None) -> T:
        """Return the result of the call."""
        try:
            return super().result(timeout)
        except AgentStopped as stop:
            raise _seen_here(stop) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the call."""
        error = super().exception(timeout)
        if not isinstance(error, AgentStopped):
            return error
        seen = _seen_here(error)
        if isinstance(seen, AgentStopped):
            return seen
        raise seen

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call a function when the call has ended; it belongs to the run that registers it."""
        super().add_done_callback(fn if is_on() else callback_in_run(fn))


def _stopped_run() -> Any:
    run = context.current_node()
    return None if run is None or run.first_stop is None else run


def _seen_here(stop: AgentStopped) -> BaseException:
    """Return what the calling code sees of a stop that ended a call."""
    run = _stopped_run()
    if run is None:
        return concurrent.futures.CancelledError(str(stop))
    run.deliver(raised=True)
    first = run.first_stop
    return stop if stop.target == first.target.id else AgentStopped(first.target.id, first.reason)


def as_call_future(future: Future[T]) -> Future[T]:
    """Make the future that an executor returned that of a call which belongs to a run."""
    if type(future) is Future:
        future.__class__ = CallFuture  # the executor creates it, and may have completed it by now
    return future


def add_done_callback_of(original: Callable[..., None]) -> Callable[..., None]:
    """Return a ``Future.add_done_callback`` whose callbacks belong to the run that registers them."""

    @functools.wraps(original)
    def add_done_callback(self: Any, fn: Callable[..., object]) -> None:
        original(self, callback_in_run(fn) if is_on() else fn)

    return add_done_callback


def callback_in_run(function: Callable[..., object]) -> Callable[..., object]:
    """Return a callback that belongs to the current run, on whichever thread it is called."""
    if type(_get()) is Outside or (scope := scopes.current()) is None:
        return function
    return functools.partial(_call_back, scope, function)


def _call_back(scope: RunContext, function: Callable[..., object], *args: Any) -> None:
    """Call a callback in its run; after the stop, one of the user's is not begun.

    One of a library is always called, because others may wait for it, but what it starts belongs to the run. Whoever
    calls it never sees the stop: AgentStopped would end the thread of a pool.
    """
    here = scopes.later(scope)
    if here is None or context.current_node() is here.run_here():
        function(*args)
    elif not whose.is_users(function):
        with _without_refusals(), scopes.performing(scopes.OnForeignThread(here)):
            function(*args)
    else:
        with (
            contextlib.suppress(AgentStopped),
            scopes.performing(here),
            LibraryBoundary("thread", whose.name_of(function)),
        ):
            function(*args)


@contextlib.contextmanager
def _without_refusals() -> Iterator[None]:
    try:
        yield
    except concurrent.futures.CancelledError as error:
        if not isinstance(error.__cause__, AgentStopped):
            raise

"""Finds the scope in which plain code starts something: its run, the clean-up of a stopped run, or none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import sys
import threading
from contextvars import Token
from types import FrameType
from typing import Never

from stoppable._core import clock, context
from stoppable._core.boundary import Boundary, LibraryBoundary, boundary, check
from stoppable._core.context import RunContext
from stoppable._core.node import RunNode
from stoppable._core.shield import shielded
from stoppable._core.values import Rung
from stoppable._engine import tasks
from stoppable.errors import AgentStopped

_get, _set = context.current.get, context.current.set


class _CurrentCleanup(threading.local):
    cleanup: shielded | None = None
    """The clean-up that submitted the call which this thread executes."""


_current = _CurrentCleanup()


def current() -> RunContext | None:
    """Return the scope of whatever is started here, or None if it belongs to no run."""
    scope = later(_get())
    run = None if scope is None else scope.run_here()
    if scope is None or run is None or not scope.closed:
        return scope
    return _cleanup_of(run) or scope


def later(scope: RunContext) -> RunContext | None:
    """Return the scope of work that was begun in a scope and goes on now, or None if it belongs to no run any more.

    What a completed run left behind continues in the nearest ancestor that has not ended.
    """
    run = scope.run_here()
    if run is None:
        return None
    if run.outcome is not None and run.first_stop is None:
        return next((outer for outer in run.lineage() if outer.outcome is None), None)
    return scope


def _cleanup_of(run: RunNode) -> shielded | None:
    """Return the clean-up that the calling code belongs to: a stop unwinds it, or a clean-up submitted this call."""
    cleanup = _current.cleanup
    if cleanup is not None and cleanup._run is run and not cleanup.closed:
        return cleanup
    return None if run.outcome is not None or not _is_unwinding(run) else _region_until_kill(run)


def _region_until_kill(run: RunNode) -> shielded:
    region = shielded(0.0)
    region._run = run
    region._until = clock.now() + run.policy.cancel if (kill_at := run.kill_at()) is None else kill_at
    return region


def to_the_end(scope: RunContext) -> RunContext:
    """Return a scope for work that is completed once it has begun, unless KILL comes before."""
    run = scope.run_here()
    assert run is not None, "begun in a run"
    region = _region_until_kill(run)
    region._until = math.inf  # `kill_at` ends it
    return region


def _is_unwinding(run: RunNode) -> bool:
    """Return whether a stop of this run unwinds the calling code.

    A stop somewhere in the chain of the handled exception is not enough: a TimeoutError has the cancel of its timeout
    in its chain, and a framework may turn a stop into an error of a tool, which the agent answers with more work. The
    stop must be one of this run, the frame that handles it must still be executing, and it must not be the declared
    cause of another error, which took its place.
    """
    error = sys.exception()
    replaced_error: BaseException | None = None
    while error is not None:
        if error is not replaced_error and _is_stop_of(run, error) and _is_handled_above(error):
            return True
        replaced_error = error.__cause__
        error = error.__context__
    return False


def _is_stop_of(run: RunNode, error: BaseException) -> bool:
    match error:
        case AgentStopped():
            return any(error.target == each.id for each in run.lineage())
        case asyncio.CancelledError():
            return tasks.is_own(error) or _is_passed_down(run)
        case BaseExceptionGroup():
            return any(_is_stop_of(run, inner) for inner in error.exceptions)
        case _:
            return isinstance(error, GeneratorExit)  # a generator that is closed only cleans up


def _is_passed_down(run: RunNode) -> bool:
    """Return whether a cancel without our mark comes from the stop: a task group cancels its tasks with its own.

    If only the stop has cancelled this task, the error is of another task, which was cancelled before.
    """
    was_raised = run.noticed or (run.rung is not None and run.rung >= Rung.CANCEL)
    task = asyncio.current_task() if was_raised and asyncio._get_running_loop() is not None else None
    return task is not None and task.cancelling() > 0 and not tasks.is_only_own_cancel()


def _is_handled_above(error: BaseException) -> bool:
    """Return whether the frame that an exception has reached, and which handles it, is on the calling stack."""
    handler = None if error.__traceback__ is None else error.__traceback__.tb_frame
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not handler:
        frame = frame.f_back
    return frame is not None


def is_cleaning_up() -> bool:
    """Return whether the calling code is cleaning up: it is in a shield, or a stop unwinds it."""
    scope = _get()
    run = scope.run_here()
    return not scope.closed or (run is not None and _is_unwinding(run))


def is_cleanup(scope: RunContext) -> bool:
    """Return whether a scope is a clean-up; only KILL ends what is started in it."""
    return isinstance(own(scope), shielded)


def enter(scope: RunContext, kind: str, name: str | None, *, is_look: bool = False) -> Boundary:
    """Enter a boundary in a scope; raises AgentStopped if the run was told to stop."""
    reset = _set(scope)
    try:
        return (boundary(kind, name) if is_look else LibraryBoundary(kind, name)).__enter__()
    finally:
        context.current.reset(reset)


def check_in(scope: RunContext) -> None:
    """Raise AgentStopped if the run of a scope was told to stop."""
    reset, checked_at = _set(scope), scope.checked_at
    try:
        check()
        scope.checked_at = checked_at  # a library may have called this: it does not show that the run itself looks
    finally:
        context.current.reset(reset)


class OnForeignThread:
    """The scope of a run's work on a thread that works for others too, and which a stop of the run must not end.

    A refused effect raises CancelledError there, as a call that was cancelled does. It is an ordinary Exception: the
    loop of a worker and the machinery of a pool survive it, as they survive work that fails.
    """

    __slots__ = ("_scope",)

    def __init__(self, scope: RunContext) -> None:
        self._scope = scope

    @property
    def checked_at(self) -> float:
        return self._scope.checked_at

    @checked_at.setter
    def checked_at(self, at: float) -> None:
        self._scope.checked_at = at

    @property
    def closed(self) -> bool:
        return self._scope.closed

    def run_here(self) -> RunNode | None:
        return self._scope.run_here()

    def answer_should_stop(self) -> bool:
        return self._scope.answer_should_stop()

    def raise_stopped(self) -> Never:
        try:
            self._scope.raise_stopped()
        except AgentStopped as stop:
            raise concurrent.futures.CancelledError(str(stop)) from stop


def own(scope: RunContext) -> RunContext:
    """Return the scope of work on a thread that is the run's own."""
    return scope._scope if isinstance(scope, OnForeignThread) else scope


class performing:  # noqa: N801 - reads as a statement
    """Executes the code of the block in a scope, on any thread."""

    __slots__ = ("_outer", "_reset", "_scope")

    def __init__(self, scope: RunContext) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._reset: Token[RunContext] = _set(self._scope)
        self._outer = _current.cleanup
        # Also kept outside the context, because `asyncio.to_thread` enters a copy of the context that it was called in.
        _current.cleanup = self._scope if isinstance(self._scope, shielded) else None

    def __exit__(self, *_error: object) -> None:
        _current.cleanup = self._outer
        context.current.reset(self._reset)

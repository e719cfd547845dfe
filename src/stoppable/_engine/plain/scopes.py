"""Finds the scope in which plain code starts something: its run, the clean-up of a stopped run, or none."""

from __future__ import annotations

import sys
import threading
from contextvars import Token

from stoppable._core import clock, context
from stoppable._core.boundary import Boundary, boundary, check
from stoppable._core.context import RunContext
from stoppable._core.node import RunNode
from stoppable._core.shield import shielded

_get, _set = context.current.get, context.current.set


class _Here(threading.local):
    cleanup: shielded | None = None
    """The clean-up that submitted the call which this thread executes."""


_here = _Here()


def current() -> RunContext | None:
    """Return the scope of whatever is started here, or None if it belongs to no run.

    What a completed run left behind continues in the nearest ancestor that has not ended.
    """
    scope = _get()
    run = scope.run_here()
    if run is None:
        return None
    if run.outcome is not None and run.first_stop is None:
        return next((outer for outer in run.lineage() if outer.outcome is None), None)
    if not scope.closed:
        return scope
    return _cleanup_of(run) or scope


def _cleanup_of(run: RunNode) -> shielded | None:
    """Return the clean-up that the calling code belongs to: a stop unwinds it, or a clean-up submitted this call."""
    cleanup = _here.cleanup
    if cleanup is not None and cleanup._run is run and not cleanup.closed:
        return cleanup
    if run.outcome is not None or not _is_unwinding():
        return None
    region = shielded(0.0)
    region._run = run
    region._until = clock.now() + run.policy.cancel if (kill_at := run.kill_at()) is None else kill_at
    return region


def _is_unwinding() -> bool:
    """Return whether a BaseException such as AgentStopped is unwinding the calling code.

    Code that has swallowed it is not unwinding: the interpreter forgets an exception at the end of its ``except``.
    """
    error = sys.exception()
    while error is not None:
        if not isinstance(error, Exception):
            return True
        error = error.__context__
    return False


def is_cleaning_up() -> bool:
    """Return whether the calling code is cleaning up: it is in a shield, or a stop unwinds it."""
    return not _get().closed or _is_unwinding()


def is_cleanup(scope: RunContext) -> bool:
    """Return whether a scope is a clean-up; only KILL ends what is started in it."""
    return isinstance(scope, shielded)


def enter(scope: RunContext, kind: str, name: str | None) -> Boundary:
    """Enter a boundary in a scope; raises AgentStopped if the run was told to stop."""
    reset = _set(scope)
    try:
        return boundary(kind, name).__enter__()
    finally:
        context.current.reset(reset)


def look(scope: RunContext) -> None:
    """Raise AgentStopped if the run of a scope was told to stop."""
    reset = _set(scope)
    try:
        check()
    finally:
        context.current.reset(reset)


class performing:  # noqa: N801 - reads as a statement
    """Executes the code of the block in a scope, on any thread."""

    __slots__ = ("_outer", "_reset", "_scope")

    def __init__(self, scope: RunContext) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._reset: Token[RunContext] = _set(self._scope)
        self._outer = _here.cleanup
        # Also kept outside the context, because `asyncio.to_thread` enters a copy of the context that it was called in.
        _here.cleanup = self._scope if isinstance(self._scope, shielded) else None

    def __exit__(self, *_error: object) -> None:
        _here.cleanup = self._outer
        context.current.reset(self._reset)

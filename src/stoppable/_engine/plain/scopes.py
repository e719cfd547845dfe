"""Where plain code starts something: in its run, in the clean-up of a stopped run, or in none."""

from __future__ import annotations

import sys
import threading
from contextvars import Token

from stoppable._core import clock, context
from stoppable._core.boundary import Boundary, boundary, check
from stoppable._core.context import Scope
from stoppable._core.run import Run
from stoppable._core.shield import shielded

_get, _set = context.current.get, context.current.set


class _Here(threading.local):
    cleanup: shielded | None = None
    """The clean-up that the calling thread executes a call of."""


_here = _Here()


def current() -> Scope | None:
    """Return the scope for whatever is started here, or None if that belongs to no run.

    Code that a completed run left behind goes on as plain code, for the nearest ancestor that has not ended.
    """
    scope = _get()
    run = scope._run_here()
    if run is None:
        return None
    if run._outcome is not None and run._stop is None:
        return next((outer for outer in run._lineage() if outer._outcome is None), None)
    if not scope._closed:
        return scope
    return _cleanup_of(run) or scope


def _cleanup_of(run: Run) -> shielded | None:
    """Return the clean-up that is going on here: a stop unwinds the calling code, or started this call to clean up."""
    cleanup = _here.cleanup
    if cleanup is not None and cleanup._run is run and not cleanup._closed:
        return cleanup
    if run._outcome is not None or not _is_unwinding():
        return None
    region = shielded(0.0)
    region._run = run
    region._until = clock.now() + run.policy.cancel if (kill_at := run._kill_at()) is None else kill_at
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
    """Return whether the calling code cleans up: in a shield, or because the stop unwinds it."""
    return not _get()._closed or _is_unwinding()


def is_cleanup(scope: Scope) -> bool:
    """Return whether a scope is a clean-up: nothing but KILL ends what is started in it."""
    return isinstance(scope, shielded)


def enter(scope: Scope, kind: str, name: str | None) -> Boundary:
    """Enter a boundary in a scope; raises AgentStopped if the run was told to stop."""
    reset = _set(scope)
    try:
        return boundary(kind, name).__enter__()
    finally:
        context.current.reset(reset)


def look(scope: Scope) -> None:
    """Raise AgentStopped if the run of a scope was told to stop."""
    reset = _set(scope)
    try:
        check()
    finally:
        context.current.reset(reset)


class performing:  # noqa: N801 - reads as a statement
    """Execute the code of the block in a scope, on whatever thread."""

    __slots__ = ("_outer", "_reset", "_scope")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._reset: Token[Scope] = _set(self._scope)
        self._outer = _here.cleanup
        # Kept beside the context too: `asyncio.to_thread` enters a copy of the context that it was called in.
        _here.cleanup = self._scope if isinstance(self._scope, shielded) else None

    def __exit__(self, *_error: object) -> None:
        _here.cleanup = self._outer
        context.current.reset(self._reset)

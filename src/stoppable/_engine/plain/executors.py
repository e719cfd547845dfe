"""Calls in plain executors: the call takes part in the run, not the thread that executes it."""

from __future__ import annotations

import concurrent.futures
import functools
import socket
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import MethodType
from typing import Any

from stoppable._core import context
from stoppable._core.boundary import Boundary, LibraryBoundary, innermost
from stoppable._core.context import Outside, RunContext
from stoppable._engine.plain import scopes, whose
from stoppable._engine.plain.futures import as_call_future
from stoppable._engine.plain.patches import is_on
from stoppable._engine.threads import ThreadPoolExecutor, working_inside

_get = context.current.get

_LOOKUPS = (socket.getaddrinfo, socket.getnameinfo)  # used by event loops, not effects of the agent


def submit_of(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    """Return a ``ThreadPoolExecutor.submit`` whose calls take part in the run."""

    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if type(_get()) is Outside or not is_on():
            return original(self, fn, *args, **kwargs)
        call = taken_along(fn, args, kwargs)
        return original(self, fn, *args, **kwargs) if call is None else as_call_future(original(self, call))

    return submit


def run_sync_of(original: MethodType) -> classmethod[Any, Any, Any]:
    """Return a method for ``anyio.to_thread.run_sync`` whose calls take part in the run."""
    inner = original.__func__

    @functools.wraps(inner)
    async def run_sync(cls: type, func: Callable[..., Any], args: tuple[Any, ...], *rest: Any, **options: Any) -> Any:
        if is_on() and (call := taken_along(func, args, {})) is not None:
            func, args = call, ()
        return await inner(cls, func, args, *rest, **options)

    return classmethod(run_sync)


def taken_along(fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Return a call that takes part in the current run, or None outside runs; raise AgentStopped after a stop."""
    scope = scopes.current()
    if scope is None or fn in _LOOKUPS:
        return None
    if not isinstance(scope, scopes.OnForeignThread):  # there the call is skipped, so that those who wait are told
        scopes.look(scope)
    run = scope.run_here()
    assert run is not None, "submitted in a run"
    return functools.partial(_perform, scope, innermost(run), fn, args, kwargs)


def _perform(
    scope: RunContext, inside: Boundary | None, fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> Any:
    """Execute a call on a thread of the executor; a call that was still queued at the stop is skipped."""
    here = scopes.later(scope)
    if here is None:
        return fn(*args, **kwargs)  # the run completed without waiting for it
    name = whose.name_of(functools.partial(fn, *args))
    with scopes.performing(here), working_inside(inside if here is scope else None), LibraryBoundary("thread", name):
        return fn(*args, **kwargs)


def carry_runs(executor: object) -> None:
    """Make the calls that a run submits to an executor take part in it, also without ``instrument()``.

    It stays the same executor, and for calls outside runs nothing changes.
    """
    if type(executor) is concurrent.futures.ThreadPoolExecutor and "submit" not in vars(executor):
        vars(executor)["submit"] = functools.partial(_submit_to, weakref.ref(executor))


def _submit_to(
    executor: weakref.ref[concurrent.futures.ThreadPoolExecutor], fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Future[Any]:
    target = executor()
    assert target is not None, "called on it"
    call = None if is_on() else taken_along(fn, args, kwargs)  # otherwise the class does it
    submit = concurrent.futures.ThreadPoolExecutor.submit
    return submit(target, fn, *args, **kwargs) if call is None else as_call_future(submit(target, call))


class LoopExecutor(ThreadPoolExecutor):
    """The default executor of an event loop that had none when its first run began."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Execute a call on one of the threads; inside a run, it takes part in the run."""
        return self._submit(taken_along(fn, args, kwargs) or functools.partial(fn, *args, **kwargs))

"""Pools of processes, and the thread pool of multiprocessing.

The processes of a pool belong to the run that created it. In a pool that the run did not create, only
the call takes part.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from stoppable._core import context
from stoppable._core.context import DETACHED, Outside, RunContext
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.state import Rung
from stoppable._engine.plain import scopes, whose
from stoppable._engine.plain.executors import taken_along
from stoppable._engine.plain.patches import is_on
from stoppable.errors import AgentStopped

_get, _set = context.current.get, context.current.set

_owners: weakref.WeakKeyDictionary[Any, RunNode] = weakref.WeakKeyDictionary()


class PoolCall(Participant):
    """A call in a process pool; CANCEL and KILL cancel it if it has not begun."""

    __slots__ = ("_boundary", "_future", "_is_over")

    def __init__(self, scope: RunContext, name: str | None) -> None:
        self._is_over = False
        self._future: Future[Any] | None = None
        self._boundary = scopes.enter(scope, "spawn", name)
        self._boundary.holder = self

    def follow(self, future: Future[Any]) -> None:
        """Record the end of the call when its future is done."""
        self._future = future
        future.add_done_callback(self._done)

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:  # noqa: ARG003 - both rungs do the same
        """Cancel the call if it has not begun."""
        for call in targets:
            assert isinstance(call, cls)
            if call._future is not None:
                call._future.cancel()

    def alive(self) -> bool:
        """Return whether the call has not ended."""
        return not self._is_over

    def describe(self) -> str:
        """Name the call."""
        return f"call of {self._boundary.name} in a pool of processes"

    def _done(self, future: Future[Any]) -> None:
        self.end(asyncio.CancelledError if future.cancelled() else type(future.exception()))

    def end(self, error: type[Any] | None) -> None:
        """Record that the call has ended."""
        kind = error if error is not None and issubclass(error, BaseException) else None
        self._boundary.__exit__(kind, None, None)
        self._is_over = True


def init_of(original: Callable[..., None]) -> Callable[..., None]:
    """Return a ``ProcessPoolExecutor.__init__`` that remembers the run that created the pool."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        run = context.current_node()
        if run is not None and is_on():
            _owners[self] = run

    return init


def submit_of(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    """Return a ``ProcessPoolExecutor.submit`` whose calls take part in the run."""

    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if type(_get()) is Outside or not is_on() or (scope := scopes.current()) is None:
            return original(self, fn, *args, **kwargs)
        call = PoolCall(scope, whose.name_of(fn))
        owner = _owners.get(self)
        reset = _set(scope if owner is scope.run_here() else DETACHED if owner is None or owner.closed else owner)
        try:
            future = original(self, fn, *args, **kwargs)
        except BaseException as error:
            call.end(type(error))
            raise
        finally:
            context.current.reset(reset)
        call.follow(future)
        return future

    return submit


def thread_pool_method_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method for ``multiprocessing.pool.Pool`` whose calls take part in the run if it is a thread pool."""

    @functools.wraps(original)
    def method(self: Any, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if type(_get()) is not Outside and is_on() and _is_of_threads(self) and taken_along(func, (), {}) is not None:
            func = _Call(scopes.current(), func)
        return original(self, func, *args, **options)

    return method


def _is_of_threads(pool: Any) -> bool:
    return any(cls.__name__ == "ThreadPool" for cls in type(pool).__mro__)


class _Call:
    """A function whose calls take part in the run, for pool threads, which do not survive a BaseException."""

    def __init__(self, scope: RunContext | None, function: Callable[..., Any]) -> None:
        assert scope is not None, "called in a run"
        self._scope = scope
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with scopes.performing(self._scope):
                call = taken_along(self.__wrapped__, args, kwargs)
                return self.__wrapped__(*args, **kwargs) if call is None else call()
        except AgentStopped as stop:
            # Raise an Exception: after a BaseException the pool would wait for the result for ever.
            raise concurrent.futures.CancelledError(str(stop)) from stop

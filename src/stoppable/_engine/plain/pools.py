"""Pools of processes, and the thread pool of multiprocessing.

The processes of a pool belong to the run that created it. In a pool that the run did not create, only
the call takes part. The callbacks of a call belong to the run in any pool.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from stoppable._core import context
from stoppable._core.context import DETACHED, Outside, RunContext
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.state import Fate, Rung
from stoppable._engine.plain import scopes, whose
from stoppable._engine.plain.executors import taken_along
from stoppable._engine.plain.futures import callback_in_run
from stoppable._engine.plain.patches import is_on
from stoppable.errors import AgentStopped

_get, _set = context.current.get, context.current.set

_owners: weakref.WeakKeyDictionary[Any, RunNode] = weakref.WeakKeyDictionary()


class _PoolFuture(Future[Any]):
    """The future of a call that may have been cancelled when its pool breaks.

    Before 3.13, a pool whose processes end meanwhile fails at such a future, and leaves the others without a result.
    """

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error of the call, unless it was cancelled."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            super().set_exception(exception)


class PoolCall(Participant):
    """A call in a process pool; CANCEL and KILL cancel it if it has not begun."""

    __slots__ = ("_boundary", "_future", "_is_over", "_pool")

    def __init__(self, scope: RunContext, name: str | None, pool: Any) -> None:
        self._is_over = False
        self._pool: weakref.ref[Any] = weakref.ref(pool)
        self._future: Future[Any] | None = None
        self._boundary = scopes.enter(scope, "spawn", name)
        self._boundary.holder = self

    def follow(self, future: Future[Any]) -> None:
        """Record the end of the call when its future is done."""
        if type(future) is Future:
            future.__class__ = _PoolFuture
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
        if future.cancelled():
            self.skip()
            return
        error = future.exception()
        run = self._boundary._run
        is_forced = run is not None and run.rung is not None and run.rung >= Rung.CANCEL
        if not (is_forced and isinstance(error, concurrent.futures.BrokenExecutor)):
            self.end(type(error))
        elif self._has_begun(future):
            self.end(asyncio.CancelledError)  # it died with its process
        else:
            self.skip()

    def _has_begun(self, future: Future[Any]) -> bool:
        """Return whether a process had begun a call when the pool broke: they begin in the order of the calls."""
        pool = self._pool()
        if pool is None:
            return True
        waiting = [item.future for item in list(pool._pending_work_items.values())]
        return future not in waiting[pool._max_workers :]

    def end(self, error: type[Any] | None) -> None:
        """Record that the call has ended."""
        kind = error if error is not None and issubclass(error, BaseException) else None
        self._boundary.__exit__(kind, None, None)
        self._is_over = True

    def skip(self) -> None:
        """Record that the call has not begun, and never will."""
        run = self._boundary._run
        assert run is not None, "it is open"
        self._boundary._fate = Fate.SKIPPED
        self._is_over = True
        self._boundary._skip()
        if run.sink is not None:
            run.sink.left(run, self._boundary)
        if run.body_end is not None:
            run.settle()


class _CallOutside(PoolCall):
    """A call in a ``multiprocessing.Pool``, which cannot be taken back."""

    __slots__ = ()

    def alive(self) -> bool:
        """Return whether the call has not ended, nor the pool."""
        pool = self._pool()
        return super().alive() and pool is not None and pool._state != "TERMINATE"


class _Results(dict[int, Any]):
    """What a result knows of the pool's results: it takes itself out when the call has ended."""

    def __init__(self, results: dict[int, Any], call: PoolCall) -> None:
        super().__init__()
        self._results = results
        self._call = call

    def __delitem__(self, job: int) -> None:
        self._results.pop(job, None)
        self._call.end(None)


def init_of(original: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` for a pool of processes that remembers the run which created the pool."""

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
        call = PoolCall(scope, whose.name_of(fn), self)
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


def method_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method for ``multiprocessing.pool.Pool`` whose calls take part in the run."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if type(_get()) is Outside or not is_on() or (scope := scopes.current()) is None:
            return original(self, func, *args, **options)
        given = signature.bind(self, func, *args, **options)
        for name in ("callback", "error_callback"):
            if given.arguments.get(name) is not None:
                given.arguments[name] = callback_in_run(given.arguments[name])
        if not _is_of_threads(self):
            return _call_outside(self, scope, functools.partial(original, *given.args, **given.kwargs), func)
        if taken_along(func, (), {}) is not None:
            given.arguments["func"] = _Call(scope, func)
        return original(*given.args, **given.kwargs)

    return method


class _Here(threading.local):
    call: PoolCall | None = None
    """The call that is being submitted."""


_here = _Here()


def _call_outside(pool: Any, scope: RunContext, submit: Callable[[], Any], func: Callable[..., Any]) -> Any:
    """Submit a call to a pool of processes; in a pool that the run or one around it made, the processes take part."""
    run = scope.run_here()
    assert run is not None, "submitted in a run"
    if any(_owners.get(pool) is each for each in run.lineage()):
        scopes.look(scope)
        return submit()
    outer, _here.call = _here.call, _CallOutside(scope, whose.name_of(func), pool)
    try:
        return submit()
    except BaseException as error:
        if _here.call is not None:
            _here.call.end(type(error))
        raise
    finally:
        _here.call = outer


def result_of(original: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` for a result of a ``multiprocessing.Pool`` that reports the end of its call."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        call = _here.call
        if call is not None:
            self._cache = _Results(self._cache, call)

    return init


def _is_of_threads(pool: Any) -> bool:
    return any(cls.__name__ == "ThreadPool" for cls in type(pool).__mro__)


class _Call:
    """A function whose calls take part in the run, for pool threads, which do not survive a BaseException."""

    def __init__(self, scope: RunContext, function: Callable[..., Any]) -> None:
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

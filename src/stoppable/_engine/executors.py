"""Calls in plain executors, the futures of calls, and the event loops whose executors carry the run.

A call takes part in the run, not the thread that executes it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import socket
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from types import MethodType
from typing import Any, ParamSpec, TypeVar

from stoppable._core import context
from stoppable._core.boundary import Boundary, LibraryBoundary, innermost
from stoppable._core.context import Outside, RunContext
from stoppable._engine.instrumentation import scopes, user_code
from stoppable._engine.instrumentation.patches import is_on
from stoppable._engine.threads import DaemonPool, bind, working_inside
from stoppable.errors import AgentStopped

_get = context.current.get
P = ParamSpec("P")
T = TypeVar("T")


class CallFuture(Future[T]):
    """The future of a call that belongs to a run.

    AgentStopped is only seen inside stopped runs: for all other code, a call that the stop ended was cancelled.
    """

    call: Callable[[], QueuedCall | None] = staticmethod(lambda: None)
    """Returns the call while it is queued or executed; a future that is kept must not keep its arguments."""

    def cancelled(self) -> bool:
        """Return whether the call was cancelled, or ended by a stop that the caller does not know."""
        return super().cancelled() or (isinstance(self._exception, AgentStopped) and _stopped_run() is None)

    def result(self, timeout: float | None = None) -> T:
        """Return the result of the call."""
        self._note_waiter()
        try:
            return super().result(timeout)
        except AgentStopped as stop:
            raise _as_seen_here(stop) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the call."""
        self._note_waiter()
        error = super().exception(timeout)
        if not isinstance(error, AgentStopped):
            return error
        visible = _as_seen_here(error)
        if isinstance(visible, AgentStopped):
            return visible
        raise visible

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call a function when the call has ended; it belongs to the run that registers it."""
        self._note_waiter()
        super().add_done_callback(fn if is_on() else callback_in_run(fn))

    def _note_waiter(self) -> None:
        if (call := self.call()) is not None and (scope := scopes.current()) is not None:
            call.note_waiter(scope)


def _stopped_run() -> Any:
    run = context.current_node()
    return None if run is None or run.first_stop is None else run


def _as_seen_here(stop: AgentStopped) -> BaseException:
    """Return what the calling code sees of a stop that ended a call."""
    run = _stopped_run()
    if run is None:
        return concurrent.futures.CancelledError(str(stop))
    run.deliver(raised=True)
    first = run.first_stop
    return stop if stop.target == first.target.id else AgentStopped(first.target.id, first.reason)


def as_call_future(future: Future[T], call: QueuedCall) -> Future[T]:
    """Make the future that an executor returned that of a call which belongs to a run."""
    if type(future) is Future:
        future.__class__ = CallFuture  # the executor creates it, and may have completed it by now
    if isinstance(future, CallFuture):
        future.call = weakref.ref(call)
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
    elif not user_code.is_users(function):
        with _without_refusals(), scopes.performing(scopes.OnForeignThread(here)):
            function(*args)
    else:
        with (
            contextlib.suppress(AgentStopped),
            scopes.performing(here),
            LibraryBoundary("thread", user_code.name_of(function)),
        ):
            function(*args)


@contextlib.contextmanager
def _without_refusals() -> Iterator[None]:
    try:
        yield
    except concurrent.futures.CancelledError as error:
        if not isinstance(error.__cause__, AgentStopped):
            raise


_LOOKUPS = (socket.getaddrinfo, socket.getnameinfo)  # used by event loops, not effects of the agent


def submit_of(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    """Return a ``ThreadPoolExecutor.submit`` whose calls take part in the run."""

    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if type(_get()) is Outside or not is_on():
            return original(self, fn, *args, **kwargs)
        call = call_in_run(fn, args, kwargs)
        return original(self, fn, *args, **kwargs) if call is None else as_call_future(original(self, call), call)

    return submit


def run_sync_of(original: MethodType) -> classmethod[Any, Any, Any]:
    """Return a method for ``anyio.to_thread.run_sync`` whose calls take part in the run."""
    inner = original.__func__

    @functools.wraps(inner)
    async def run_sync(cls: type, func: Callable[..., Any], args: tuple[Any, ...], *rest: Any, **options: Any) -> Any:
        if is_on() and (call := call_in_run(func, args, {})) is not None:
            func, args = call, ()
        return await inner(cls, func, args, *rest, **options)

    return classmethod(run_sync)


def call_in_run(fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> QueuedCall | None:
    """Return a call that takes part in the current run, or None outside runs; raise AgentStopped after a stop."""
    scope = scopes.current()
    if scope is None or fn in _LOOKUPS:
        return None
    if not isinstance(scope, scopes.OnForeignThread):  # there the call is skipped, so that those who wait are told
        scopes.check_in(scope)
    return QueuedCall(scope, functools.partial(fn, *args, **kwargs))


class QueuedCall:
    """A call of a run that waits for a thread of an executor.

    If it is still queued at the stop it is skipped, unless another run waits for its result by then: runs share such
    futures in caches, and a stop never affects a run that it does not name (G4). Then it is a call of that run.
    """

    __slots__ = ("__weakref__", "_function", "_inside", "_run", "_scope", "_waiter")

    def __init__(self, scope: RunContext, function: functools.partial[Any]) -> None:
        run = scope.run_here()
        assert run is not None, "submitted in a run"
        self._scope = scope
        self._run = run
        self._inside = innermost(run)
        self._function = function
        self._waiter: RunContext | None = None

    def note_waiter(self, scope: RunContext) -> None:
        """Note that the code in a scope waits for the result."""
        run = scope.run_here()
        if run is not None and not run.is_within(self._run):
            self._waiter = scope

    def __call__(self) -> Any:
        """Execute it, on a thread of the executor."""
        here = scopes.later(self._scope)
        if here is None:
            return self._function()  # the run completed without waiting for it
        has_begun = False
        try:
            inside = self._inside if here is self._scope else None
            with scopes.performing(here), working_inside(inside), self._boundary():
                has_begun = True
                return self._function()
        except AgentStopped:
            waiter = None if self._waiter is None else scopes.later(self._waiter)
            if has_begun or waiter is None:
                raise
        with scopes.performing(waiter), self._boundary():
            return self._function()

    def _boundary(self) -> Boundary:
        return LibraryBoundary("thread", user_code.name_of(self._function))


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
    call = None if is_on() else call_in_run(fn, args, kwargs)  # otherwise the class does it
    submit = concurrent.futures.ThreadPoolExecutor.submit
    return submit(target, fn, *args, **kwargs) if call is None else as_call_future(submit(target, call), call)


class ThreadPoolExecutor(concurrent.futures.ThreadPoolExecutor):
    """A thread pool whose calls belong to the run that submitted them; its threads are daemons.

    It is a ``concurrent.futures`` executor, also for ``loop.set_default_executor()``. A call that has not begun when
    its run is stopped raises AgentStopped instead of running.
    """

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "stoppable-pool") -> None:
        super().__init__(max_workers, thread_name_prefix)
        self._daemons = DaemonPool(thread_name_prefix, self._max_workers)
        self._pending: dict[Future[Any], bool] = {}
        self._is_shut = False
        self._guard = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call on one of the threads."""
        return self._submit(functools.partial(bind(fn), *args, **kwargs))

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = CallFuture()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            self._pending.pop(future, None)

        with self._guard:
            if self._is_shut:
                raise RuntimeError("cannot submit to an executor that was shut down")
            self._pending[future] = True
            try:
                self._daemons.submit(work)
            except RuntimeError:
                del self._pending[future]
                raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - inherited
        """Refuse further calls; ``wait`` for those that run."""
        with self._guard:
            self._is_shut = True
        if cancel_futures:
            for future in list(self._pending):
                future.cancel()
        if wait:
            concurrent.futures.wait(list(self._pending))
        self._daemons.close()
        super().shutdown(wait=False)


class LoopExecutor(ThreadPoolExecutor):
    """The default executor of an event loop that had none when its first run began."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Execute a call on one of the threads; inside a run, it takes part in the run."""
        call = call_in_run(fn, args, kwargs)
        if call is None:
            return self._submit(functools.partial(fn, *args, **kwargs))
        return as_call_future(self._submit(call), call)


_CLOSING_SECONDS = 2.0


def run_in_new_loop(main: Callable[[], Coroutine[Any, Any, T]], cut: Callable[[], object] = lambda: None) -> T:
    """Run a coroutine to its end on a new loop, whose default executor passes the run on to its threads.

    Unlike ``asyncio.run`` it does not wait for tasks, generators and threads that cannot be ended; ``cut`` is called if
    there are such tasks.
    """
    loop = new_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        close_loop(loop, cut)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop, whose default executor passes the run on to its threads."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(LoopExecutor())
    return loop


def give_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Make the calls in a loop's default executor take part in the run; a loop without an executor gets one."""
    executor = getattr(loop, "_default_executor", loop)
    if executor is None:
        loop.set_default_executor(LoopExecutor())
    elif type(executor) is not LoopExecutor:
        carry_runs(executor)


def close_loop(loop: asyncio.AbstractEventLoop, cut: Callable[[], object] = lambda: None) -> None:
    """Close a loop without waiting for tasks and generators that cannot be ended; ``cut`` is called if there are."""
    leftover = asyncio.all_tasks(loop)
    for task in leftover:
        task.cancel()
    if leftover:
        loop.run_until_complete(asyncio.wait(leftover, timeout=_CLOSING_SECONDS))
    closing = loop.create_task(loop.shutdown_asyncgens())
    loop.run_until_complete(asyncio.wait([closing], timeout=_CLOSING_SECONDS))
    remaining = asyncio.all_tasks(loop)
    if remaining:
        cut()
    for task in remaining:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # abandoned, and reported as such
    loop.close()

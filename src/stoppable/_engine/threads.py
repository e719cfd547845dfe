"""Threads as participants, ways to start threads that see the token, and daemon threads that are kept for reuse."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import itertools
import os
import queue
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from stoppable._core import context, participants
from stoppable._core.boundary import Boundary, check, innermost
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.values import Rung
from stoppable._engine import tasks
from stoppable._engine.source_lines import describe_thread, frames_of_thread, lines
from stoppable.errors import AgentStopped, InvalidArgument

_IDLE_SECONDS = 10.0
_numbers = itertools.count(1)


class DaemonPool:
    """Runs calls on its own threads; grows as needed up to ``limit``, and lets idle threads end.

    Its threads are daemons: neither the interpreter's exit nor the end of an event loop waits for one that hangs.
    """

    def __init__(self, name: str, limit: int | None = None) -> None:
        self._name = name
        self._limit = limit
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unclaimed = 0  # waiting threads, minus the calls on their way to them

    def submit(self, call: Callable[[], object]) -> None:
        """Run a call, which must not raise, on some thread; at once unless ``limit`` threads are busy.

        Raises RuntimeError, and does not run the call, if a thread is needed and the system cannot start one.
        """
        with self._lock:
            needs_thread = self._unclaimed <= 0 and (self._limit is None or self._threads < self._limit)
            self._threads += needs_thread
            self._unclaimed += needs_thread - 1
        if needs_thread:
            try:
                threading.Thread(target=self._work, name=f"{self._name}-{next(_numbers)}", daemon=True).start()
            except RuntimeError:
                with self._lock:
                    self._threads -= 1
                raise
        self._calls.put(call)

    def close(self) -> None:
        """Let every thread end after the submitted calls; do not submit any more."""
        with self._lock:
            threads = self._threads
        for _ in range(threads):
            self._calls.put(None)

    def forget_threads(self) -> None:
        """Reset the pool after a fork, which no thread survives."""
        self.__init__(self._name, self._limit)  # type: ignore[misc]  # the state of a new pool

    def is_busy(self) -> bool:
        """Return whether a call is running or waiting for a thread."""
        with self._lock:
            return self._unclaimed < self._threads

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._unclaimed <= 0:
                        continue  # a call is on its way
                    self._threads -= 1
                    self._unclaimed -= 1
                return
            if call is None:
                with self._lock:
                    self._threads -= 1
                    self._unclaimed -= 1
                return
            call()
            del call  # a thread that waits must not keep the last call's results alive
            with self._lock:
                self._unclaimed += 1


P = ParamSpec("P")
T = TypeVar("T")


_local = threading.local()
pool = DaemonPool("stoppable-thread")
os.register_at_fork(after_in_child=pool.forget_threads)


class ThreadParticipant(Participant):
    """A thread that executes a part of a run; it cannot be ended from outside (N3), but a task that it runs can."""

    __slots__ = ("_edges", "_thread")

    def __init__(self) -> None:
        self._thread = threading.current_thread()
        self._edges = 0

    def enter_edge(self) -> None:
        """Begin to execute the body of a run."""
        self._edges += 1
        participants.executing[self] = self

    def leave_edge(self) -> None:
        """End the body of a run; the thread may still execute an outer one."""
        self._edges -= 1
        if not self._edges:
            participants.executing.pop(self, None)

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Cancel the task for which a thread runs an event loop. Otherwise its next boundary raises, or it is lost."""
        threads = ((participant._thread, run) for participant, run in targets.items() if isinstance(participant, cls))
        tasks.cancel_main_tasks(rung, threads)

    def alive(self) -> bool:
        """Return whether the thread still runs."""
        return self._thread.is_alive()

    def describe(self) -> str:
        """Return the user's own line, then the thread's name."""
        return describe_thread(self._thread)

    def stack(self) -> tuple[str, ...]:
        """Return its stack, innermost first: if it hangs in a library, the callers show why."""
        return lines(frames_of_thread(self._thread))


class _Visit(ThreadParticipant):
    """A thread of some pool while it executes one call for a run: alive until the call returns."""

    __slots__ = ("_is_over", "_loop", "_run", "inside")

    def __init__(self, run: RunNode, inside: Boundary | None) -> None:
        super().__init__()
        self._run = run
        self.inside = inside
        self._is_over = False
        self._loop = asyncio._get_running_loop()  # a task of it makes the call, if there is one
        run.admit(self)

    def alive(self) -> bool:
        """Return whether the call still runs."""
        return not self._is_over and super().alive()

    def end(self, error: BaseException | None = None) -> None:
        """Record that the call has returned or raised."""
        if self.inside is not None:
            self.inside._ends_with(self, self._run, error)  # before the run can end: the receipt says how it ended
        self._is_over = True
        self._run.withdraw(self)
        if self._run.body_end is not None:
            self._run.settle()  # the run may have waited only for this call


class _Work(_Visit):
    """A call that has a boundary, and works for another one; the receipt names the call by its own boundary."""

    __slots__ = ()

    is_listed = False


class working_inside:  # noqa: N801 - reads as a statement
    """Keeps a boundary open while the block works for it, though the code that entered it may be cut off before.

    The fate of the boundary is then that of the block.
    """

    __slots__ = ("_inside", "_work")

    def __init__(self, inside: Boundary | None) -> None:
        self._inside = inside

    def __enter__(self) -> None:
        run = None if self._inside is None else context.current_node()
        self._work = None if run is None else _Work(run, self._inside)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._work is not None:
            self._work.end(error)


class _Attendance:
    """A thread's part in a run; the context of its code holds it, and the part ends when the context is dropped."""

    __slots__ = ("visit",)

    def __init__(self, visit: _Visit) -> None:
        self.visit = visit

    def __del__(self) -> None:
        self.visit.end()


_attended: contextvars.ContextVar[_Attendance | _Visit | None] = contextvars.ContextVar("attended", default=None)


def attend(run: RunNode) -> None:
    """Make the calling thread a participant of the run of its context, for as long as the context exists.

    A foreign thread pool that copies the context does not report when a call begins or ends.
    """
    main = run.main
    if isinstance(main, ThreadParticipant) and main._thread is threading.current_thread():
        return
    if innermost(run) is not None or threading.current_thread() is threading.main_thread():
        return  # it takes part while it is in that boundary; and the main thread belongs to no pool
    attendance = _attended.get()
    visit = attendance.visit if isinstance(attendance, _Attendance) else attendance
    if visit is None or visit._run is not run or visit._thread is not threading.current_thread() or not visit.alive():
        _attended.set(_Attendance(_Visit(run, None)))


def is_visiting(run: RunNode, loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the calling code is a call for the run that a task of the loop makes: the call takes part."""
    visit = _attended.get()
    return isinstance(visit, _Visit) and visit._loop is loop and visit._run is run and visit.alive()


def current() -> ThreadParticipant:
    """Return the participant for the calling thread."""
    try:
        participant: ThreadParticipant = _local.participant
    except AttributeError:
        participant = _local.participant = ThreadParticipant()
    return participant


def bind(function: Callable[P, T]) -> Callable[P, T]:
    """Bind a function to the current run, so that it takes part in the run on any thread or executor.

    The function sees the run's token, and the run is not ``stopped`` before it returns. If it is called after the stop,
    it raises AgentStopped and does nothing. Outside a run, ``bind`` returns the function unchanged.
    """
    if not callable(function):
        raise InvalidArgument(f"{function!r} cannot be bound: pass a function")
    run = context.current_node()
    if run is None:
        return function
    origin = contextvars.copy_context()
    inside = innermost(run)

    @functools.wraps(function)
    def bound(*args: P.args, **kwargs: P.kwargs) -> T:
        # A context can be entered by one thread at a time: each call gets a copy.
        return origin.copy().run(_visit, inside, function, args, kwargs)

    return bound


def _visit(inside: Boundary | None, function: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
    """Execute a call for the run of the current context."""
    run = context.current_node()
    assert run is not None, "bound inside a run"
    visit = _Visit(run, inside)
    _attended.set(visit)  # the call has its own copy of the context
    try:
        check()
        result = function(*args, **kwargs)
    except BaseException as error:
        visit.end(error)
        raise
    visit.end()
    return result


async def to_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking code on a thread that belongs to the run, and wait for it.

    A graceful stop lets it finish. At CANCEL the waiting ends; the thread cannot be ended, so the run stays
    ``stopping`` until it returns or the run is ``lost``. The threads are daemons: ``asyncio.run`` does not wait for one
    that hangs.
    """
    try:
        return await _to_thread(functools.partial(function, *args, **kwargs))
    except AgentStopped:
        await participants.engine.hold_back()
        raise


async def _to_thread(call: Callable[[], T]) -> T:
    check()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    own_context = contextvars.copy_context()
    run = context.current_node()
    if run is not None:
        call = functools.partial(_visit, innermost(run), call, (), {})

    def work() -> None:
        result, error = None, None
        try:
            result = own_context.run(call)
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
            loop.call_soon_threadsafe(_hand_over, future, result, error)

    pool.submit(work)
    return await future


def _hand_over(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # the waiting task was cancelled
    if isinstance(error, StopIteration):
        converted = RuntimeError("the function raised StopIteration, which cannot be raised into a coroutine")
        converted.__cause__ = error
        error = converted
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)

"""Boundaries and checks: the points where a stop takes effect."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType, TracebackType
from typing import Any, ClassVar, Self, TypeVar, cast

from stoppable._core import clock, context, participants
from stoppable._core.context import FORKED, OUTSIDE, RunContext
from stoppable._core.node import RunNode
from stoppable._core.participants import Member, Role, code_of, unwrap_partial
from stoppable._core.shield import shielded
from stoppable._core.stop import fate_of
from stoppable._core.values import Fate
from stoppable.errors import AgentStopped, InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])

_LOOKED_AT = 64  # members to search at most: the innermost boundary is among the last that entered
_get = context.current.get  # bound once, because every check calls it
_coarse = clock.coarse
_executing = participants.executing


def should_stop() -> bool:
    """Return whether the current run was stopped; True counts as noticing the stop (delivery)."""
    scope = _get()
    if scope is OUTSIDE:  # no other comparison: it would cost a third of an empty call
        if _executing and not _warned:
            _look_outside(scope, "should_stop()")
        return False
    scope.checked_at = _coarse.now
    return scope.closed and scope.answer_should_stop()


def check() -> None:
    """Raise AgentStopped if the current run was stopped, at every call (G5)."""
    scope = _get()
    if type(scope) is RunNode:
        scope.checked_at = _coarse.now
        participants.engine.join(scope)
    elif (run := scope.run_here()) is not None:
        run.checked_at = _coarse.now
        _join_in_shield(scope, run)
    else:
        _look_outside(scope, "check()")
    if scope.closed:
        scope.raise_stopped()


def _join_in_shield(scope: RunContext, run: RunNode) -> participants.Participant | None:
    holder = participants.engine.join(run)
    if holder is not None and isinstance(scope, shielded):
        scope._protect(holder)  # CANCEL also waits for a task that was started in the shield
    return holder


def boundary(kind: str, name: str | None = None) -> Boundary:
    """Mark a point where an outside effect begins: a model call, a tool, a store, a process, a sub-run.

    Use it as a context manager or a decorator, for functions and generators, sync and async. It raises AgentStopped on
    entry if the run was stopped, and never on exit, so an answer that was paid for is kept (G11). While it is open, it
    is listed as in flight.
    """
    # A function, because a constructor written in Python would add half of the cost.
    entry = Boundary()
    entry.kind = kind
    entry.name = name
    entry._run = None
    return entry


class Boundary(Member):
    """A boundary of a run, as ``boundary()`` returns it."""

    __slots__ = ("_fate", "_run", "holder", "kind", "name")

    role = Role.BOUNDARY
    is_look: ClassVar[bool] = True
    """Whether the run's own code entered it, and so would notice a stop; not if an executor did on its behalf."""

    kind: str
    name: str | None
    holder: participants.Participant | None
    """The participant that is inside; set on entry."""
    _run: RunNode | None  # the run in which it is open
    _fate: Fate

    @property
    def label(self) -> str:
        """The label under which it is listed: its kind, and its name if it has one."""
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @property
    def is_idle(self) -> bool:
        """Whether its effect has not ended, but no code waits for it: a stream whose consumer processes a chunk."""
        return False

    @property
    def fate(self) -> Fate | None:
        """What happened to it, if it was open when the run was stopped."""
        return getattr(self, "_fate", None)

    def __repr__(self) -> str:
        return f"<boundary {self.label}>"

    def __enter__(self) -> Self:
        run = _get()
        if type(run) is not RunNode or self._run is not None:
            return self._enter_slowly(run)
        main = run.main
        if main is None or not main.thread._is_owned() or main.task is not participants.engine.current_task(main.loop):
            # The rare case: nearly always the run's own task enters, which is recognized without a call.
            main = participants.engine.join(run)
        self._run = run
        self.holder = main
        members = run.members
        if members is None:
            members = run.make_members()
        if self.is_look:
            run.checked_at = _coarse.now
        members[self] = True  # published first, then checked
        if run.closed or run.budget is not None or run.sink is not None:
            self._after_publishing(run, run)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        run = self._run
        if run is not None:
            self._run = None
            if self.is_look:
                run.checked_at = _coarse.now
            if run.closed:
                if error is not None and self._goes_on(run):
                    return
                self._note_fate(run, kind, error)  # before it is removed, because the run may wait for that
            # A boundary that was entered is one of the members, so the dict exists.
            del run.members[self]  # type: ignore[union-attr]
            if run.closed:
                self._leave_closed(run, kind, error)
            if run.sink is not None:
                run.sink.left(run, self)

    async def __aenter__(self) -> Self:
        try:
            return self.__enter__()
        except AgentStopped:
            await participants.engine.hold_back()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

    def _enter_slowly(self, scope: RunContext) -> Self:
        """Enter in a shield, which is allowed after the stop, or outside any run, which does nothing."""
        if self._run is not None:
            raise InvalidArgument(f"{self!r} is already entered: call boundary(…) again for each `with`")
        run = scope.run_here()
        if run is not None:
            self._run = run
            if self.is_look:
                run.checked_at = _coarse.now
            self.holder = _join_in_shield(scope, run)
            run.admit(self)
            self._after_publishing(run, scope)
        else:
            _look_outside(scope, f"boundary {self.label!r}")
        return self

    def _after_publishing(self, run: RunNode, scope: RunContext) -> None:
        """Count the boundary; withdraw it if the gate is closed, otherwise report it."""
        self._pass(run, scope)
        if run.sink is not None:
            run.sink.entered(run, self)

    def _pass(self, run: RunNode, scope: RunContext) -> None:
        if run.budget is not None:
            run.budget.spend(self.kind)
        if scope.closed:
            self._skip()
            scope.raise_stopped()
        if scope is not run and run.closed:
            entry = (run, self.label)
            for stop in run.stops():
                stop.note_after(entry)

    def _goes_on(self, run: RunNode, ending: participants.Participant | None = None) -> bool:
        """Return whether the code that entered it was cut off while its holder still works for it."""
        for other in run.members_of(participants.Participant):
            if other.inside is self and other is not ending and other.alive():
                self.holder = other
                return True
        return False

    def _ends_with(self, ending: participants.Participant, run: RunNode, error: BaseException | None) -> None:
        """Leave the boundary if the participant that is about to end was the last one that works for it."""
        if self._run is None and self.holder is ending and not self._goes_on(run, ending):
            self._note_fate(run, None, error)
            run.withdraw(self)
            if run.sink is not None:
                run.sink.left(run, self)

    def _note_fate(self, run: RunNode, kind: type[BaseException] | None, error: BaseException | None) -> None:
        if run.outcome is None:  # a final receipt stays as it is
            self._fate = fate_of(run, kind() if error is None and kind is not None else error)

    def _leave_closed(self, run: RunNode, kind: type[BaseException] | None, error: BaseException | None) -> None:
        self._note_fate(run, kind, error)
        if run.body_end is not None:
            run.settle()  # the run may have waited only for this

    def _skip(self) -> None:
        """Withdraw before the effect begins; a stop whose snapshot contains it lists it as skipped."""
        run, self._run = self._run, None
        assert run is not None, "a published boundary has a run"
        run.withdraw(self)
        self._fate = Fate.SKIPPED

    def enter_uncounted(self, scope: RunContext) -> bool:
        """Enter the gate without counting against a limit: the call that made it was counted. False if stopped."""
        run = scope.run_here()
        if run is None:
            return True
        self._run = run
        self.holder = participants.engine.join(run)
        if self.holder is not None and isinstance(scope, shielded):
            scope._protect(self.holder)
        run.admit(self)
        if scope.closed:
            self._skip()
            return False
        if run.closed:  # it is entered in a shield
            entry = (run, self.label)
            for stop in run.stops():
                stop.note_after(entry)
        if run.sink is not None:
            run.sink.entered(run, self)
        return True

    def _resume_here(self) -> None:
        """Continue a stream in the task, thread and run that read it now."""
        scope = _get()
        run = self._run
        if run is not scope.run_here():
            if run is not None:
                self.__exit__(None, None, None)  # that run may have ended: no stop would find the stream there
            if not self.enter_uncounted(scope):
                scope.raise_stopped()
        elif run is not None:
            self.holder = participants.engine.join(run)
        check()

    def __call__(self, function: F) -> F:
        """Make every call of a function a boundary; its name defaults to the function's qualified name."""
        if not callable(function):
            raise InvalidArgument(f"{function!r} is not a function: use @boundary(kind, name) above a function")
        inner = unwrap_partial(function)
        name = self.name or getattr(inner, "__qualname__", None) or type(inner).__qualname__
        return cast("F", functools.wraps(function)(_decorated(self.kind, name, function)))


def innermost(run: RunNode) -> Boundary | None:
    """Return the boundary that the calling code is in, or that the code which waits for it is in."""
    here = participants.engine.join(run)
    entry = _innermost_of(here, run)
    if entry is None and here is not None:
        entry = next(filter(None, (_innermost_of(other, run) for other in here.awaiters())), None)
    return entry


def _innermost_of(holder: participants.Participant | None, run: RunNode) -> Boundary | None:
    for member in list(run.members or ())[: -_LOOKED_AT - 1 : -1]:
        if member.role is Role.BOUNDARY and cast("Boundary", member).holder is holder:
            return cast("Boundary", member)
    return None


class LibraryBoundary(Boundary):
    """A boundary that stoppable enters around what a library, or plain code, does for a run: entering it is no look."""

    __slots__ = ()

    is_look = False

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name
        self._run = None


class _Uncounted(Boundary):
    """The boundary around a coroutine or stream that a decorated call returned; the call itself was counted."""

    __slots__ = ()

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self._run = None

    def __enter__(self) -> Self:
        scope = _get()
        if not self.enter_uncounted(scope):
            scope.raise_stopped()
        return self


def _decorated(kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    code = code_of(function)
    if inspect.iscoroutinefunction(code):
        return _async_call(kind, name, function)
    if inspect.isasyncgenfunction(code):
        return _async_iteration(kind, name, function)
    if inspect.isgeneratorfunction(code):
        return _iteration(kind, name, function)
    return _call(kind, name, function)


_Make = Callable[[str, str], Boundary]


def _async_iteration(kind: str, name: str, function: Callable[..., Any], make: _Make = boundary) -> Callable[..., Any]:
    async def iterate_async(*args: Any, **kwargs: Any) -> Any:
        chunks = function(*args, **kwargs)
        with make(kind, name) as entry:
            try:
                chunk = await anext(chunks)
                while True:
                    entry.holder = None  # between two chunks no code is inside
                    try:
                        sent = yield chunk
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # raised by the consumer, such as a context manager's block
                        chunk = await chunks.athrow(error)
                    else:
                        entry._resume_here()
                        chunk = await chunks.asend(sent)
            except StopAsyncIteration:
                pass
            finally:
                await chunks.aclose()

    return iterate_async


def _iteration(kind: str, name: str, function: Callable[..., Any], make: _Make = boundary) -> Callable[..., Any]:
    def iterate(*args: Any, **kwargs: Any) -> Any:
        chunks = function(*args, **kwargs)
        with make(kind, name) as entry:
            try:
                chunk = next(chunks)
                while True:
                    entry.holder = None
                    try:
                        sent = yield chunk
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        chunk = chunks.throw(error)
                    else:
                        entry._resume_here()
                        chunk = chunks.send(sent)
            except StopIteration as end:
                return end.value
            finally:
                chunks.close()

    return iterate


def _async_call(kind: str, name: str, function: Callable[..., Any], make: _Make = boundary) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        entry = make(kind, name)
        try:
            entry.__enter__()
        except AgentStopped:
            await participants.engine.hold_back()
            raise
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            entry.__exit__(type(error), error, None)
            raise
        entry.__exit__(None, None, None)
        return result

    return call


def _call(kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        entry = boundary(kind, name)
        entry.__enter__()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            entry.__exit__(type(error), error, None)
            raise
        entry.__exit__(None, None, None)
        if type(result) in _RETURNED:  # the function is a wrapper for all kinds of functions
            return _RETURNED[type(result)](kind, name, result)
        return result

    return call


async def _await_result(kind: str, name: str, coroutine: CoroutineType[Any, Any, Any]) -> Any:
    try:
        return await _async_call(kind, name, lambda: coroutine, _Uncounted)()
    finally:
        coroutine.close()  # in case the gate is closed and it was not awaited


_RETURNED: dict[type, Callable[[str, str, Any], Any]] = {
    CoroutineType: _await_result,
    GeneratorType: lambda kind, name, result: _iteration(kind, name, lambda: result, _Uncounted)(),
    AsyncGeneratorType: lambda kind, name, result: _async_iteration(kind, name, lambda: result, _Uncounted)(),
}


_warned = False


def _look_outside(scope: RunContext, what: str) -> None:
    """Warn once if code has lost its run: on a bare thread, or in a forked process."""
    global _warned
    if _warned:
        return
    if scope is FORKED:
        message = (
            f"{what} was called in a process that was forked inside a run: a fork has no run, and no stop reaches it. "
            "Start an agent with isolation='process' instead, or a command with stoppable.run_process()"
        )
    elif scope is OUTSIDE and participants.engine.is_worker_thread():
        message = (
            f"{what} was called on a thread that belongs to no run while runs are live: no stop reaches it. Start the "
            "thread with stoppable.to_thread() or wrap the function with stoppable.bind(); if it is meant to outlive "
            "the run, use stoppable.detached()"
        )
    else:
        return
    _warned = True
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("stoppable."):
        frame, level = frame.f_back, level + 1  # the warning names the calling line outside of stoppable
    warnings.warn(message, RuntimeWarning, stacklevel=level)


FORKED.on_check = lambda: _look_outside(FORKED, "should_stop()")

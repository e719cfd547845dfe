"""The points where a stop lands: boundaries and checks."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from stoppable._core import context, port
from stoppable._core.context import OUTSIDE, Scope
from stoppable._core.gate import Member, Role
from stoppable._core.run import Run
from stoppable._core.shield import shielded
from stoppable._core.state import Fate, Rung
from stoppable.errors import InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])

_get = context.current.get  # bound once: a check is one call of it


def should_stop() -> bool:
    """Return whether the current run was told to stop; a True counts as a delivery."""
    scope = _get()
    return scope._closed and scope._answer()


def check() -> None:
    """Raise AgentStopped if the current run was told to stop, every time (G5)."""
    scope = _get()
    if type(scope) is Run:
        port.join(scope)
    elif (run := scope._run_here()) is not None:
        _join_in_shield(scope, run)
    if scope._closed:
        scope._raise_stopped()


def _join_in_shield(scope: Scope, run: Run) -> port.Participant | None:
    holder = port.join(run)
    if holder is not None and isinstance(scope, shielded):
        scope._protect(holder)  # a task that was started in the shield is held back too
    return holder


class boundary(Member):  # noqa: N801 - reads as a statement and as a decorator
    """A point where an outside effect starts: a model call, a tool, a store, a process, a sub-run.

    As a context manager or a decorator (functions and generators, sync and async). It raises AgentStopped on entry if
    the run was told to stop and never on the way out, so that an answer that was paid for is kept (G11). While it is
    open it is listed as in flight.
    """

    __slots__ = ("_fate", "_run", "holder", "kind", "name")

    role = Role.BOUNDARY

    holder: port.Participant | None
    """Who is inside; set on entry."""

    def __init__(self, kind: str, name: str | None = None) -> None:
        self.kind = kind
        self.name = name
        self._run: Run | None = None

    @property
    def label(self) -> str:
        """How it is listed: its kind, and its name if it has one."""
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @property
    def fate(self) -> Fate | None:
        """What became of it, if it was open when a stop came."""
        return getattr(self, "_fate", None)

    def __repr__(self) -> str:
        return f"<boundary {self.label}>"

    def __enter__(self) -> Self:
        scope = _get()
        if type(scope) is not Run:
            self._enter_elsewhere(scope)
            return self
        if self._run is not None:
            self._refuse_reuse()
        run = self._run = scope
        self.holder = port.join(run)
        # As Gate._admit does it, without the call: publish, then read.
        members = run._members
        if members is None:
            members = run._make_members()
        members[self] = True
        if run._budget is not None:
            run._budget.spend(self.kind)
        if run._closed:
            self._skip()
            run._raise_stopped()
        if run._sink is not None:
            run._sink.entered(run, self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        run = self._run
        if run is not None:
            self._run = None
            if run._closed:
                self._note_fate(run, kind)  # before it is gone: that may be what the run waits for
            del run._members[self]  # type: ignore[union-attr]
            if run._closed:
                self._leave_closed(run, kind)
            if run._sink is not None:
                run._sink.left(run, self)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

    def _enter_elsewhere(self, scope: Scope) -> None:
        """Enter in a shield, which may be entered after the stop, or outside any run, which does nothing."""
        run = scope._run_here()
        if run is None:
            if scope is OUTSIDE and port.is_worker_thread():
                _warn_lost_context(self.label)
            return
        if self._run is not None:
            self._refuse_reuse()
        self._run = run
        self.holder = _join_in_shield(scope, run)
        run._admit(self)
        if run._budget is not None:
            run._budget.spend(self.kind)
        if scope._closed:
            self._skip()
            scope._raise_stopped()
        if run._closed:
            entry = (run, self.label)
            for stop in run._stops():
                stop.after.append(entry)
        if run._sink is not None:
            run._sink.entered(run, self)

    def _note_fate(self, run: Run, error: type[BaseException] | None) -> None:
        if run._outcome is None:  # a final receipt stays as it is
            self._fate = _fate(run, error)

    def _leave_closed(self, run: Run, error: type[BaseException] | None) -> None:
        self._note_fate(run, error)
        if run._ended is not None:
            run._settle()  # whoever was inside may have been all that the run waited for

    def _skip(self) -> None:
        """Withdraw before the effect; a stop whose snapshot has it lists it as skipped."""
        run, self._run = self._run, None
        assert run is not None, "published in it"
        run._withdraw(self)
        self._fate = Fate.SKIPPED

    def _take_up(self) -> None:
        """Go on with a stream, in whatever task or thread reads it now."""
        if self._run is not None:
            self.holder = port.join(self._run)
        check()

    def _refuse_reuse(self) -> None:
        raise InvalidArgument(f"{self!r} is already entered: call boundary(…) anew for each `with`")

    def __call__(self, function: F) -> F:
        """Make every call of a function a boundary; its name defaults to the function's qualified name."""
        if not callable(function):
            raise InvalidArgument(f"{function!r} is not a function: use @boundary(kind, name) above a function")
        kind, name = self.kind, self.name or function.__qualname__
        return cast("F", functools.wraps(function)(_decorated(kind, name, function)))


def _decorated(kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        return _async_call(kind, name, function)

    if inspect.isasyncgenfunction(function):

        async def iterate_async(*args: Any, **kwargs: Any) -> Any:
            chunks = function(*args, **kwargs)
            with boundary(kind, name) as entry:
                try:
                    async for chunk in chunks:
                        entry.holder = None  # between two chunks nobody is inside
                        yield chunk
                        entry._take_up()
                finally:
                    await chunks.aclose()

        return iterate_async

    if inspect.isgeneratorfunction(function):

        def iterate(*args: Any, **kwargs: Any) -> Any:
            chunks = function(*args, **kwargs)
            with boundary(kind, name) as entry:
                try:
                    for chunk in chunks:
                        entry.holder = None  # between two chunks nobody is inside
                        yield chunk
                        entry._take_up()
                finally:
                    chunks.close()

        return iterate

    return _call(kind, name, function)


class _Call(boundary):
    """One call of a decorated function."""

    __slots__ = ()

    # With neither a constructor in Python nor a `with`, entering and leaving costs three quarters.
    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    else:
        __init__ = object.__init__


def _async_call(kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        entry = _Call()
        entry.kind, entry.name, entry._run = kind, name, None
        entry.__enter__()
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
        entry = _Call()
        entry.kind, entry.name, entry._run = kind, name, None
        entry.__enter__()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            entry.__exit__(type(error), error, None)
            raise
        entry.__exit__(None, None, None)
        return result

    return call


_FORCED = {Rung.INTERRUPT: Fate.INTERRUPTED, Rung.CANCEL: Fate.CANCELLED, Rung.KILL: Fate.KILLED}


def _fate(run: Run, error: type[BaseException] | None) -> Fate:
    """Say how a boundary ended that was open at a stop."""
    if error is None:
        return Fate.FINISHED
    if run._rung is not None:
        return _FORCED.get(run._rung, Fate.ABANDONED)
    # Before any force: an error is the effect's own end, anything harder is somebody unwinding it (N12).
    return Fate.FINISHED if issubclass(error, Exception) else Fate.CANCELLED


_warned = False


def _warn_lost_context(label: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"boundary {label!r} was entered on a thread that belongs to no run while runs are live: a stop cannot "
            "reach it. Start the thread with stoppable.to_thread() or wrap the function with stoppable.bind(); if it "
            "is meant to outlive the run, use stoppable.detached()",
            RuntimeWarning,
            stacklevel=4,
        )

"""The current run of the calling code, and the token that tells it of a stop."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Never, Protocol, Self

from stoppable._core.values import Reason

if TYPE_CHECKING:
    from stoppable._core.node import RunNode
    from stoppable._core.run import Run


class Token:
    """The read-only answer to whether a run was stopped, on any thread, for ever (G3)."""

    __slots__ = ("_run",)

    def __init__(self, run: RunNode) -> None:
        self._run = run

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped. Reading it does not count as noticing the stop; ``should_stop()`` does."""
        return self.reason is not None

    @property
    def reason(self) -> Reason | None:
        """Why the run was stopped, or None; the first reason stays."""
        stop = self._run.first_stop
        return None if stop is None else stop.reason

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Every reason given so far, the first one first."""
        return tuple(stop.reason for stop in self._run.stops())

    def should_stop(self) -> bool:
        """Return what ``stoppable.should_stop()`` returns inside the run; True counts as noticing the stop (delivery).

        For code that holds the token but does not belong to the run, such as a callback on a foreign thread. Calling it
        does not make the caller a part of the run.
        """
        if self._run.closed:
            self._run.deliver(raised=True)
        return self._run.closed

    def __repr__(self) -> str:
        return f"<Token of run {self._run.id}: {'stopped' if self.stopped else 'not stopped'}>"


class RunContext(Protocol):
    """The value of the context variable: a run, a shield in a run, or a place outside any run.

    Every check reads ``closed``, which is an attribute, not a method, so that a check costs about as much as an empty
    call.
    """

    @property
    def checked_at(self) -> float:
        """Set by every check to the coarse time, so that a stop knows whether the run would notice it."""
        ...

    @checked_at.setter
    def checked_at(self, at: float) -> None: ...

    @property
    def closed(self) -> bool: ...

    def run_here(self) -> RunNode | None: ...

    def answer_should_stop(self) -> bool: ...

    def raise_stopped(self) -> Never: ...


class Outside:
    """Outside any run: never stopped, everything is harmless."""

    __slots__ = ("_name", "checked_at")

    closed = False
    checked_at: float

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}>"

    def run_here(self) -> None:
        return None

    def answer_should_stop(self) -> bool:
        return False

    def raise_stopped(self) -> Never:
        raise AssertionError(f"{self!r} is never closed")


class Forked(Outside):
    """Outside any run because of a fork, which the code does not know: ``should_stop()`` warns."""

    __slots__ = ("on_check",)

    on_check: Callable[[], object]

    def __setattr__(self, name: str, value: object) -> None:
        if name == "checked_at":  # a check notes its time, and does nothing else outside a run
            self.on_check()
        else:
            super().__setattr__(name, value)


OUTSIDE = Outside("outside any run")
DETACHED = Outside("detached from its run")
FORKED = Forked("in a process that was forked inside a run")

current: contextvars.ContextVar[RunContext] = contextvars.ContextVar("stoppable", default=OUTSIDE)


def _leave_run() -> None:
    # A forked process has a copy of the run and of its sink, and no stop reaches the copy.
    if current.get().run_here() is not None:
        current.set(FORKED)


os.register_at_fork(after_in_child=_leave_run)


def current_node() -> RunNode | None:
    """Return the node of the run that the calling code belongs to, or None outside a run."""
    return current.get().run_here()


def current_run() -> Run | None:
    """Return the run that the calling code belongs to, or None outside a run."""
    return current.get().run_here()


class detached:  # noqa: N801 - reads as a statement: `with detached():`
    """Leave the run for a block: work that is called or started inside may outlive the run."""

    __slots__ = ("_reset",)

    def __enter__(self) -> Self:
        self._reset = current.set(DETACHED)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        current.reset(self._reset)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

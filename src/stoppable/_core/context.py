"""The context variable that says which run the calling code belongs to."""

from __future__ import annotations

import contextvars
import os
from types import TracebackType
from typing import TYPE_CHECKING, Never, Protocol, Self

if TYPE_CHECKING:
    from stoppable._core.node import RunNode
    from stoppable._core.run import Run


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

    def __init__(self, name: str) -> None:
        self._name = name
        self.checked_at = 0.0

    def __repr__(self) -> str:
        return f"<{self._name}>"

    def run_here(self) -> None:
        return None

    def answer_should_stop(self) -> bool:
        return False

    def raise_stopped(self) -> Never:
        raise AssertionError(f"{self!r} is never closed")


OUTSIDE = Outside("outside any run")
DETACHED = Outside("detached from its run")
FORKED = Outside("in a process that was forked inside a run")

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

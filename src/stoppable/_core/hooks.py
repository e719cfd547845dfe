"""Callbacks at the moments of a stop."""

from __future__ import annotations

import contextvars
import inspect
import logging
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stoppable._core import context
from stoppable._core.gate import Member, Role
from stoppable.errors import InvalidArgument

if TYPE_CHECKING:
    from stoppable._core.run import Run

_logger = logging.getLogger("stoppable")


class Moment(Enum):
    """When a hook is due."""

    STOP = "stop"
    INTERRUPT = "interrupt"
    END = "end"


class Hook(Member):
    """One callback of one run; called at most once (G12), and removed by leaving it as a context manager."""

    __slots__ = ("_callback", "_context", "_run", "moment")

    role = Role.HOOK

    def __init__(self, run: Run, moment: Moment, callback: Callable[[], object]) -> None:
        self.moment = moment
        self._run = run
        self._callback = callback
        self._context: contextvars.Context | None = None

    def call(self) -> None:
        """Call it; what it raises is logged, so that one failing hook stops no other."""
        try:
            if self._context is None:
                self._callback()
            else:
                self._context.run(self._callback_detached)
        except Exception:
            _logger.exception("a hook of run %s failed", self._run.id)

    def _callback_detached(self) -> None:
        # A hook cleans up after the run; its boundaries must not raise because the run is stopped.
        context.current.set(context.DETACHED)
        self._callback()

    def remove(self) -> None:
        """Forget the callback, unless it was already called."""
        self._run._withdraw(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.remove()


class NoHook:
    """What registering outside a run gives: nothing to call, nothing to remove."""

    def remove(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass


def on_stop(callback: Callable[[], object]) -> Hook | NoHook:
    """Call ``callback`` when the current run is told to stop; at once if it already was (G12).

    It is called on a thread of its own, with the context variables of the place that registered it.
    """
    return _user_hook(Moment.STOP, callback)


def on_interrupt(callback: Callable[[], object]) -> Hook | NoHook:
    """Call ``callback`` at the INTERRUPT rung: the place to close a stream or to call a provider's cancel (G12)."""
    return _user_hook(Moment.INTERRUPT, callback)


def _user_hook(moment: Moment, callback: Callable[[], object]) -> Hook | NoHook:
    if not callable(callback) or inspect.iscoroutinefunction(callback):
        raise InvalidArgument(
            f"{callback!r} cannot be a hook: pass a plain function. "
            "To run a coroutine, pass a function that calls loop.call_soon_threadsafe(loop.create_task, …)"
        )
    run = context.current_run()
    if run is None:
        return NoHook()
    hook = Hook(run, moment, callback)
    hook._context = contextvars.copy_context()
    run._add_hook(hook)
    return hook

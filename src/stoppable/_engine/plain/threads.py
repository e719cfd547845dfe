"""Plain threads as participants."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from stoppable._core import context
from stoppable._core.boundary import Boundary
from stoppable._core.context import Outside, RunContext
from stoppable._core.hooks import Moment, UserHook
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.state import Rung
from stoppable._engine.plain import library, scopes, whose
from stoppable._engine.plain.patches import is_on
from stoppable._engine.source_lines import describe_thread, frames_of_thread, lines
from stoppable.errors import AgentStopped

_get = context.current.get


class PlainThread(Participant):
    """A thread that a run's code started; it cannot be ended from outside (N3)."""

    __slots__ = ("_boundary", "_is_over", "_thread")

    def __init__(self, thread: threading.Thread, entered: Boundary) -> None:
        self._thread = thread
        self._boundary = entered
        self._is_over = False
        entered.holder = self

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Do nothing: its next boundary raises; if it never reaches one, the run is lost."""

    def alive(self) -> bool:
        """Return whether its function still runs."""
        return not self._is_over

    def describe(self) -> str:
        """Return the user's own line, then the thread."""
        return describe_thread(self._thread)

    def stack(self) -> tuple[str, ...]:
        """Return its stack, innermost first."""
        return lines(frames_of_thread(self._thread))

    def end(self, error: type[BaseException] | None = None) -> None:
        """Record that its function has ended."""
        # It counts as alive until it leaves the boundary, which records its fate: the run must not end before that.
        self._boundary.__exit__(error, None, None)
        self._is_over = True


def start_of(original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Return a ``Thread.start`` whose threads take part in the run, if they execute user code."""

    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        scope: Any = _get()
        if type(scope) is Outside or not is_on() or (scope := scopes.current()) is None or self._started.is_set():  # type: ignore[attr-defined]
            original(self)
        elif whose.is_users_thread(self):
            _start(original, self, scope)
        else:
            library.start(original, self, scope)

    return start


def _start(original: Callable[[threading.Thread], None], thread: threading.Thread, scope: RunContext) -> None:
    participant = PlainThread(thread, scopes.enter(scope, "thread", thread.name))
    inner = thread.run

    def run() -> None:
        kind = None
        try:
            with scopes.performing(scope):
                inner()
        except AgentStopped:
            pass  # it ended because of the stop, so there is nothing to report
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            vars(thread).pop("run", None)
            participant.end(kind)

    if isinstance(thread, threading.Timer):
        _guard_timer(thread, scope)
    thread.run = run  # type: ignore[method-assign]
    try:
        original(thread)
    except BaseException:
        vars(thread).pop("run", None)
        participant.end()
        raise


def _guard_timer(timer: threading.Timer, scope: RunContext) -> None:
    """Cancel a timer at the stop."""
    run = scope.run_here()
    assert run is not None, "started in a run"
    function = timer.function

    @functools.wraps(function)
    def act(*args: Any, **kwargs: Any) -> Any:
        hook.remove()
        scopes.look(scope)
        return function(*args, **kwargs)

    timer.function = act
    hook = UserHook(run, Moment.STOP, timer.cancel)
    run.add_hook(hook)

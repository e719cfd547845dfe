"""Callbacks at the moments of a stop."""

from __future__ import annotations

import contextvars
import inspect
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from stoppable._core import context, participants
from stoppable._core.participants import Member, Role, code_of
from stoppable.errors import InvalidArgument

if TYPE_CHECKING:
    from stoppable._core.node import RunNode
    from stoppable._core.values import Outcome

_logger = logging.getLogger("stoppable")


class Moment(Enum):
    """When a hook is due."""

    STOP = "stop"
    INTERRUPT = "interrupt"
    END = "end"


class Hook(Member):
    """A callback at one moment of one run, at most once (G12); leaving it as a context manager removes it."""

    __slots__ = ("moment", "run")

    role = Role.HOOK
    is_look: ClassVar[bool] = True
    """Whether the run's own code registered it, and so would notice a stop."""

    def __init__(self, run: RunNode, moment: Moment) -> None:
        self.run: RunNode = run
        self.moment: Moment = moment

    def call(self) -> None:
        """Call it; must return at once and not raise."""
        raise NotImplementedError

    @classmethod
    def call_all(cls, hooks: Sequence[Hook]) -> None:
        """Call hooks of this class that are due together."""
        for hook in hooks:
            hook.call()

    def remove(self) -> None:
        """Remove it, unless it was already called."""
        self.run.withdraw(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.remove()


class Callback(Hook):
    """A hook that calls an internal function."""

    __slots__ = ("_function",)

    def __init__(self, run: RunNode, moment: Moment, function: Callable[[], object]) -> None:
        super().__init__(run, moment)
        self._function = function

    def call(self) -> None:
        """Call it."""
        self._function()


class UserHook(Callback):
    """A hook that calls a user's function, which may raise or hang."""

    __slots__ = ("_context", "_delivers")

    def __init__(self, run: RunNode, moment: Moment, function: Callable[[], object], *, delivers: bool = False) -> None:
        super().__init__(run, moment, function)
        self._context = contextvars.copy_context()
        self._delivers = delivers

    def call(self) -> None:
        """Call it in the context where it was registered; errors are logged, so that other hooks are still called."""
        try:
            self._context.run(self._call_detached)
        except BaseException:
            # Any kind of exception: on this thread, no other code could handle it.
            _logger.exception("a hook of run %s failed", self.run.id)

    @classmethod
    def call_all(cls, hooks: Sequence[Hook]) -> None:
        """Call hooks on separate threads: a hook may hang, and must not block anything else."""
        participants.engine.dispatch(hooks)

    def _call_detached(self) -> None:
        # A hook cleans up after the run; its boundaries must not raise because the run is stopped.
        context.current.set(context.DETACHED)
        if self._delivers:
            self.run.deliver(raised=True)
        self._function()


stops_under_way: dict[object, bool] = {}
"""Stops that have marked their runs, and have not called the hooks yet: the process may be about to end meanwhile."""


def call_hooks(hooks: Sequence[Hook]) -> None:
    """Call hooks that are due together, those of one class at once."""
    if len(hooks) == 1:
        type(hooks[0]).call_all(hooks)
        return
    kinds: dict[type[Hook], list[Hook]] = {}
    for hook in hooks:
        kinds.setdefault(type(hook), []).append(hook)
    for kind, some in kinds.items():
        kind.call_all(some)


class NoHook:
    """The result of registering a hook outside a run: does nothing."""

    def remove(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass


class EndHook(UserHook):
    """A user's function that is called with the outcome of the run."""

    __slots__ = ()

    def __init__(self, run: RunNode, function: Callable[[Outcome[Any]], object]) -> None:
        super().__init__(run, Moment.END, lambda: function(_outcome_of(run)))

    def due(self) -> None:
        """Call it on a separate thread, not on the one that ends the run."""
        self.call_all([self])

    def remove(self) -> None:
        """Remove it, unless it was already called."""
        self.run.forget(self.due)


def _outcome_of(run: RunNode) -> Outcome[Any]:
    assert run.outcome is not None, "it has ended"
    return run.outcome


def on_stop(callback: Callable[[], object], *, delivers: bool = False) -> Hook | NoHook:
    """Call ``callback`` when the current run is stopped; at once if it already was (G12).

    It is called on a separate thread, with the context variables of the code that registered it. An async function runs
    as a task on the event loop on which it was registered. The run does not wait for it; the end of the process does,
    for a second at most.

    With ``delivers=True`` the run has noticed the stop when the callback is called, so it ends as ``stopped`` even if
    its function then returns a value: for a callback that is the cancel of a framework, which ends by returning.
    """
    return _user_hook(Moment.STOP, callback, delivers=delivers)


def on_interrupt(callback: Callable[[], object]) -> Hook | NoHook:
    """Call ``callback`` at the INTERRUPT rung, to close a stream or to call a provider's cancel (G12).

    It is called in the same way as an ``on_stop`` callback.
    """
    return _user_hook(Moment.INTERRUPT, callback)


def on_end(callback: Callable[[Outcome[Any]], object]) -> Hook | NoHook:
    """Call ``callback`` with the outcome when the current run has ended, in whatever way (G12).

    It is also called if the code never ends and the run is ``lost``. It is called in the same way as an ``on_stop``
    callback.
    """
    run = _run_for(callback)
    if run is None:
        return NoHook()
    hook = EndHook(run, _plain(callback))
    run.when_ended(hook.due, first=True)  # before code that waits for the run, which may end the process
    return hook


def _user_hook(moment: Moment, callback: Callable[[], object], *, delivers: bool = False) -> Hook | NoHook:
    run = _run_for(callback)
    if run is None:
        return NoHook()
    hook = UserHook(run, moment, _plain(callback), delivers=delivers)
    run.add_hook(hook)
    return hook


def _run_for(callback: Callable[..., object]) -> RunNode | None:
    if not callable(callback):
        raise InvalidArgument(f"{callback!r} cannot be a hook: pass a function")
    return context.current_node()


def _plain(callback: Callable[..., object]) -> Callable[..., object]:
    return participants.engine.in_loop(callback) if inspect.iscoroutinefunction(code_of(callback)) else callback

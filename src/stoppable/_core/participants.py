"""Participants, and the functions that the core needs from the engine, which sets them when it is imported.

The core knows neither asyncio nor threads. Without the engine, a stop climbs no ladder and calls hooks in place.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stoppable._core.gate import Member, Role
from stoppable.errors import InvalidArgument

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary
    from stoppable._core.hooks import Hook
    from stoppable._core.node import RunNode
    from stoppable._core.shield import shielded
    from stoppable._core.state import Rung
    from stoppable._core.stop import Stop


class Participant(Member):
    """Whatever executes a part of a run and can be ended by the ladder, such as a task, thread or process."""

    __slots__ = ()

    role = Role.PARTICIPANT

    task: Any = None
    """The asyncio task, if it is one; defined here so that a boundary can compare it without a type check."""
    loop: Any = None
    """The event loop of the task."""
    thread: Any = threading.RLock()
    """A lock that the thread of that loop holds for ever, and no other thread takes: asking a lock whether the caller
    owns it is the cheapest way to identify a thread."""

    is_listed: ClassVar[bool] = True
    """Whether the receipt of a lost run names it; otherwise the boundary that it holds is named."""
    inside: Boundary | None = None
    """The boundary that it works for, although other code entered it and may leave it first."""
    _opener: Participant | None = None
    """The participant for which it holds a boundary, such as the task that started a process."""

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Apply CANCEL or KILL to participants of this class, each on behalf of the outermost stopped run."""
        raise NotImplementedError

    def alive(self) -> bool:
        """Return whether it can still execute anything."""
        raise NotImplementedError

    def has_looked(self) -> bool:
        """Return whether ``alive()`` tells what was seen after KILL; one that searches for processes may not yet."""
        return True

    def describe(self) -> str:
        """Return one line with its name and current position, for the receipt of a lost run."""
        raise NotImplementedError

    def stack(self) -> tuple[str, ...]:
        """Return its stack, innermost frame first, if it can be seen."""
        return ()

    def awaiters(self) -> Iterable[Participant]:
        """Return the participants that wait for it: what it does is done for the boundaries that they are in."""
        return ()

    def left_behind(self) -> None:
        """Note that the body of the surrounding run has ended; a participant that waits for that body ends now."""

    def shield_entered(self, shield: shielded) -> None:
        """Delay CANCEL until the shield is left or expires; only for participants that react to CANCEL."""

    def shield_left(self, shield: shielded) -> None:
        """Send a delayed CANCEL."""


class RemoteParticipant(Participant):
    """A participant with its own gate, in another process or service, which must receive every stop."""

    __slots__ = ()

    role = Role.REMOTE

    def tell(self, stop: Stop) -> None:
        """Pass a stop on; returns at once, and is safe on any thread and in a signal handler."""
        raise NotImplementedError


def _no_participant() -> Participant | None:
    return None


def _nobody(_of: object) -> None:
    return None


def _no_climb(_stop: Stop) -> None:
    pass


def _call_in_place(hooks: Sequence[Hook]) -> None:
    for hook in hooks:
        hook.call()


async def _no_siblings() -> None:
    pass


def _no_threads(_run: RunNode) -> tuple[str, ...]:
    return ()


def _no_loop(function: Callable[..., object]) -> Callable[..., object]:
    raise InvalidArgument(f"{function!r} is async and no event loop is running: pass a plain function")


def _is_worker_thread() -> bool:
    return False


cancels: tuple[type[BaseException], ...] = ()
"""The exceptions that a cancelled task raises."""
participant: Callable[[], Participant | None] = _no_participant
"""The participant that executes the calling code."""
join: Callable[[RunNode], Participant | None] = _nobody
"""Return the participant that executes the calling code; a task joins the run if it has not yet."""
attend: Callable[[RunNode], object] = _nobody
"""Make the task or thread that executes the calling code a participant, until it leaves that code."""
current_task: Callable[[Any], Any] = _nobody
"""Return the task that an event loop executes now."""
climb: Callable[[Stop], None] = _no_climb
"""Start the ladder of a stop."""
dispatch: Callable[[Sequence[Hook]], None] = _call_in_place
"""Call hooks on separate threads, because a hook may hang."""
in_loop: Callable[[Callable[..., object]], Callable[..., object]] = _no_loop
"""Return a plain function that runs an async one on the event loop of the caller."""
hold_back: Callable[[], Awaitable[None]] = _no_siblings
"""Delay a branch that noticed the stop, so that it does not unwind its siblings before they finish their calls."""
library_threads: Callable[[RunNode], tuple[str, ...]] = _no_threads
"""Return the names of the live threads that libraries started in a run."""
is_worker_thread: Callable[[], bool] = _is_worker_thread
"""Whether runs are live but this thread belongs to none of them: a sign of lost context."""

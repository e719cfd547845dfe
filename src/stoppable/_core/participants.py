"""The members of a run, those among them that execute it, and what the core asks of the engine.

The core knows neither asyncio nor threads: the engine does, and sets ``engine`` when it is imported.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary
    from stoppable._core.hooks import Hook
    from stoppable._core.node import RunNode
    from stoppable._core.shield import shielded
    from stoppable._core.stop import Stop
    from stoppable._core.values import Rung


def unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a partial binds arguments to, or the function itself."""
    return function.func if isinstance(function, functools.partial) else function


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a callable finally calls; it decides whether the call is async or a generator."""
    inner = unwrap_partial(function)
    return inner if inspect.isroutine(inner) else type(inner).__call__


lock = threading.RLock()
# A fork waits for the lock: in the child, no thread would ever release it.
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


class Role(Enum):
    """The role of a member; faster than ``isinstance`` when a stop visits every member of a tree."""

    PARTICIPANT = "participant"
    REMOTE = "remote"
    BOUNDARY = "boundary"
    HOOK = "hook"


class Member:
    """Anything that a run has besides its children; compared by identity."""

    __slots__ = ()

    role: ClassVar[Role]

    def body_ended(self) -> None:
        """Close what the code of a stopped run left open; called when that code has ended."""


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


executing: dict[object, Participant] = {}
"""What executes the body of a run now: tasks by themselves, threads by their participants. Empty while no run is live.
"""


class RemoteParticipant(Participant):
    """A participant with its own gate, in another process or service, which must receive every stop."""

    __slots__ = ()

    role = Role.REMOTE

    def tell(self, stop: Stop) -> None:
        """Pass a stop on; returns at once, and is safe on any thread and in a signal handler."""
        raise NotImplementedError


class Engine(Protocol):
    """What the core asks of the code that executes runs."""

    cancels: tuple[type[BaseException], ...]
    """The exceptions that a cancelled task raises."""

    def current(self) -> Participant | None:
        """Return the participant that executes the calling code."""

    def join(self, run: RunNode, /) -> Participant | None:
        """Return the participant that executes the calling code; a task joins the run if it has not yet."""

    def attend(self, run: RunNode, /) -> object:
        """Make the task or thread that executes the calling code a participant, until it leaves that code."""

    def current_task(self, loop: Any, /) -> Any:
        """Return the task that an event loop executes now."""

    def climb(self, stop: Stop, /) -> None:
        """Start the ladder of a stop."""

    def dispatch(self, hooks: Sequence[Hook], /) -> None:
        """Call hooks on separate threads, because a hook may hang."""

    def in_loop(self, function: Callable[..., object], /) -> Callable[..., object]:
        """Return a plain function that runs an async one on the event loop of the caller."""
        ...

    async def hold_back(self) -> None:
        """Delay a branch that noticed the stop: its siblings are not unwound before they have finished their calls."""

    def library_threads(self, run: RunNode, /) -> tuple[str, ...]:
        """Return the names of the live threads that libraries started in a run."""
        ...

    def is_worker_thread(self) -> bool:
        """Return whether runs are live but this thread belongs to none of them: a sign of lost context."""
        ...


engine: Engine
"""Set when ``stoppable._engine`` is imported, which every import of the package does."""

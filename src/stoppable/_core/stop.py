"""One stop as the runs it reached remember it, and the receipt that says what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from stoppable._core import clock
from stoppable._core.gate import lock
from stoppable._core.reason import Reason
from stoppable._core.state import Fate, Mode, Rung, Status

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary
    from stoppable._core.hooks import Hook
    from stoppable._core.participants import RemoteParticipant
    from stoppable._core.run import Run

T = TypeVar("T")


class Answer(StrEnum):
    """What a stop request did: accepted, escalated, already_stopping or already_finished."""

    ACCEPTED = "accepted"
    ESCALATED = "escalated"
    ALREADY_STOPPING = "already_stopping"
    ALREADY_FINISHED = "already_finished"


CHANGES = (Answer.ACCEPTED, Answer.ESCALATED)
"""The answers to a stop that changed something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A run, effect or participant that was alive when the run was stopped, and what happened to it.

    ``kind`` is ``run``, the kind of a boundary, or ``participant`` for one that could not be ended. The fate of a run
    is its status. ``stack`` says where a thread or task that could not be ended stood, innermost first.
    """

    run_id: str
    kind: str
    name: str
    fate: Fate | Status
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A rung above SIGNAL, and its seconds after the stop was requested."""

    rung: Rung
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The answer to a stop: what was in flight and, once ``final``, what happened to every node."""

    run_id: str
    answer: Answer
    status: Status
    mode: Mode | None = None
    reason: Reason | None = None
    in_flight: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    entered_after: tuple[str, ...] = ()
    too_late: bool = False
    requested_at: float | None = None
    acknowledged_at: float | None = None
    delivered_at: float | None = None
    ended_at: float | None = None
    ended_late: float | None = None
    """When a run that is lost was seen to end after all; only a store can say so."""
    blind: bool = False
    """Whether the run had never looked when it was told to stop: it is cancelled after ``blind_grace``."""
    library_threads: tuple[str, ...] = ()
    """Threads of libraries that were started in the run and alive when it ended: no part of it, no stop waits for them.

    Each with its module, the first twenty; the last one says how many more there are.
    """
    ladder: tuple[Step, ...] = ()
    """The rungs that were climbed and, until it is final, those that will be."""

    @property
    def final(self) -> bool:
        """Whether the receipt is complete and will not change."""
        return self.status.terminal


Abandoned: TypeAlias = tuple[str, tuple[str, ...]]
"""The name and the stack of somebody who could not be ended."""


class Stop:
    """A stop request, and whom it reached."""

    __slots__ = (
        "_unacknowledged",
        "_waiters",
        "abandoned",
        "acknowledged_at",
        "after",
        "grace",
        "idle",
        "in_flight",
        "is_blind",
        "mode",
        "nodes",
        "reason",
        "requested_at",
        "target",
    )

    def __init__(self, target: Run, mode: Mode, reason: Reason, grace: float | None = None) -> None:
        self.target: Run = target
        self.mode: Mode = mode
        self.reason: Reason = reason
        self.grace: float | None = grace
        self.is_blind: bool = False  # its target never looked, and the mode would wait for it to
        self.requested_at: float = clock.now()
        self.acknowledged_at: float | None = None
        self._waiters: tuple[Callable[[], None], ...] = ()
        self._unacknowledged = 1  # this process, and every remote that was told
        self.nodes: list[Run] = [target]
        # Lists only where there is anything to note: most stops have nothing, and ten thousand at once would have the
        # garbage collector look at everything there is.
        self.in_flight: Sequence[tuple[Run, Boundary]] = ()
        self.idle: Sequence[Boundary] = ()  # of those: streams that nobody was reading
        self.after: Sequence[tuple[Run, str]] = ()
        self.abandoned: Sequence[tuple[Run, Abandoned]] = ()

    def note_in_flight(self, run: Run, boundary: Boundary) -> None:
        """Note a boundary that was open when the stop came."""
        with lock:
            self.in_flight = _and(self.in_flight, (run, boundary))
            if boundary.is_idle:
                self.idle = _and(self.idle, boundary)

    def note_after(self, entry: tuple[Run, str]) -> None:
        """Note a boundary that was entered after the stop; every stop of its run notes the same entry."""
        with lock:
            self.after = _and(self.after, entry)

    def note_abandoned(self, run: Run, name: Abandoned) -> None:
        """Note somebody who could not be ended."""
        with lock:
            self.abandoned = _and(self.abandoned, (run, name))

    def expect(self, remotes: int) -> None:
        """Wait for so many more gates to close."""
        with lock:
            self._unacknowledged += remotes

    def acknowledge(self) -> None:
        """Note that one more gate is closed; with the last one the stop is acknowledged."""
        with lock:
            self._unacknowledged -= 1
            if self._unacknowledged:
                return
            self.acknowledged_at = clock.now()
            waiters, self._waiters = self._waiters, ()
        for wake in waiters:
            wake()

    def when_acknowledged(self, wake: Callable[[], None]) -> None:
        """Call a function once every gate is closed, or at once if they are."""
        with lock:
            if self.acknowledged_at is None:
                self._waiters = (*self._waiters, wake)
                return
        wake()

    def look_at_target(self) -> None:
        """See whether its target never looked: it met no boundary or check, started no child and has no hook."""
        is_waiting = self.mode is Mode.GRACEFUL and self.grace is None and self.target.started_at is not None
        self.is_blind = is_waiting and not self._has_looked()

    def look_again(self) -> bool:
        """Return whether its target, which had never looked, has done so since: it can obey and gets its grace."""
        # Not once it is over: its receipt is final, and what looked was something that it left behind.
        is_news = self.is_blind and self.target._outcome is None and self._has_looked()
        self.is_blind = self.is_blind and not is_news
        return is_news

    def _has_looked(self) -> bool:
        return self.target._looked or self.target._members is not None

    def schedule(self) -> Iterator[tuple[Rung, float]]:
        """Yield the rungs above SIGNAL, each with the seconds after the request at which it begins."""
        return self.target.policy.schedule(self.mode, self.grace, is_blind=self.is_blind)

    @property
    def kill_at(self) -> float | None:
        """When KILL is due: no shield lasts longer."""
        for rung, seconds in self.schedule():
            if rung is Rung.KILL:
                return self.requested_at + seconds
        return None


def _and(noted: Sequence[T], entry: T) -> Sequence[T]:
    if not isinstance(noted, list):
        return [entry]
    noted.append(entry)
    return noted


class Due:
    """Whom stops must tell, once their whole subtrees are marked; each hook is ours to call."""

    __slots__ = ("hooks", "remotes")

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.remotes: list[tuple[RemoteParticipant, Stop]] = []

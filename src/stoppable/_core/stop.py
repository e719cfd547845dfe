"""Stop requests, as the runs that they reached keep them, and receipts."""

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
    from stoppable._core.node import RunNode
    from stoppable._core.participants import RemoteParticipant

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
    is its status. ``stack`` is the stack of a thread or task that could not be ended, innermost frame first.
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
    """When a lost run was later seen to end; only set by a store."""
    blind: bool = False
    """Whether the run had reached no boundary or check when it was stopped: it is cancelled after ``blind_grace``."""
    library_threads: tuple[str, ...] = ()
    """Library threads that were started in the run and alive when it ended; a stop does not wait for them.

    The first twenty, each with its module; then the number of the others.
    """
    ladder: tuple[Step, ...] = ()
    """The rungs that were climbed and, until it is final, those that will be."""

    @property
    def final(self) -> bool:
        """Whether the receipt is complete and will not change."""
        return self.status.terminal


Abandoned: TypeAlias = tuple[str, tuple[str, ...]]
"""The name and the stack of a participant that could not be ended."""


class Stop:
    """A stop request, and what it reached."""

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

    def __init__(self, target: RunNode, mode: Mode, reason: Reason, grace: float | None = None) -> None:
        self.target: RunNode = target
        self.mode: Mode = mode
        self.reason: Reason = reason
        self.grace: float | None = grace
        self.is_blind: bool = False  # its target is blind, and the mode would wait for a check
        self.requested_at: float = clock.now()
        self.acknowledged_at: float | None = None
        self._waiters: tuple[Callable[[], None], ...] = ()
        self._unacknowledged = 1  # this process, and every notified remote
        self.nodes: list[RunNode] = [target]
        # Lists are created only when needed: most stops need none, and ten thousand at once would make the garbage
        # collector scan everything.
        self.in_flight: Sequence[tuple[RunNode, Boundary]] = ()
        self.idle: Sequence[Boundary] = ()  # of those: streams that were not being read
        self.after: Sequence[tuple[RunNode, str]] = ()
        self.abandoned: Sequence[tuple[RunNode, Abandoned]] = ()

    def note_in_flight(self, run: RunNode, boundary: Boundary) -> None:
        """Record a boundary that was open at the stop."""
        with lock:
            self.in_flight = _and(self.in_flight, (run, boundary))
            if boundary.is_idle:
                self.idle = _and(self.idle, boundary)

    def note_after(self, entry: tuple[RunNode, str]) -> None:
        """Record a boundary that was entered after the stop; every stop of its run records the same entry."""
        with lock:
            self.after = _and(self.after, entry)

    def note_abandoned(self, run: RunNode, name: Abandoned) -> None:
        """Record a participant that could not be ended."""
        with lock:
            self.abandoned = _and(self.abandoned, (run, name))

    def expect(self, remotes: int) -> None:
        """Add gates that must close before the stop is acknowledged."""
        with lock:
            self._unacknowledged += remotes

    def acknowledge(self) -> None:
        """Record that a gate is closed; with the last one the stop is acknowledged."""
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
        """Find out whether the target is blind: it has reached no boundary or check, and has no child or hook."""
        is_waiting = self.mode is Mode.GRACEFUL and self.grace is None and self.target.started_at is not None
        self.is_blind = is_waiting and not self._has_looked()

    def look_again(self) -> bool:
        """Return whether a blind target has reached a check since: then it gets the full grace."""
        # Not after its end: the receipt is final, and the check was made by leftovers of the run.
        is_news = self.is_blind and self.target.outcome is None and self._has_looked()
        self.is_blind = self.is_blind and not is_news
        return is_news

    def _has_looked(self) -> bool:
        return self.target.has_checked or self.target.members is not None

    def schedule(self) -> Iterator[tuple[Rung, float]]:
        """Yield the rungs above SIGNAL, each with the seconds after the request at which it begins."""
        return self.target.policy.schedule(self.mode, self.grace, is_blind=self.is_blind)

    @property
    def kill_at(self) -> float | None:
        """When KILL is due; no shield lasts longer."""
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
    """The hooks and remotes that stops must notify after marking their subtrees; each hook was claimed."""

    __slots__ = ("hooks", "remotes")

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.remotes: list[tuple[RemoteParticipant, Stop]] = []

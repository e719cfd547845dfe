"""Stop requests, as the runs that they reached keep them, and receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from stoppable._core import clock
from stoppable._core.gate import lock
from stoppable._core.reach import ByRun, Reach
from stoppable._core.reason import Reason
from stoppable._core.state import Fate, Mode, Rung, Status

if TYPE_CHECKING:
    from stoppable._core.hooks import Hook
    from stoppable._core.node import RunNode
    from stoppable._core.participants import RemoteParticipant

T = TypeVar("T")

_FRESH_SECONDS = 2.0


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
    unguarded: tuple[str, ...] = ()
    """Connections that code of the run made outside every boundary, with file and line; no stop sees what they do.

    The first twenty; ``instrument()`` notes them.
    """
    ladder: tuple[Step, ...] = ()
    """The rungs that were climbed and, until it is final, those that will be."""

    @property
    def final(self) -> bool:
        """Whether the receipt is complete and will not change."""
        return self.status.terminal


class Stop(Reach):
    """A stop request, and what it reached."""

    __slots__ = (
        "_by_run",
        "_delays",
        "_unacknowledged",
        "_waiters",
        "acknowledged_at",
        "blind_after",
        "grace",
        "has_listener",
        "is_call_awaited",
        "mode",
        "reason",
        "requested_at",
        "target",
    )

    def __init__(self, target: RunNode, mode: Mode, reason: Reason, grace: float | None = None) -> None:
        super().__init__([target])
        self.target: RunNode = target
        self.mode: Mode = mode
        self.reason: Reason = reason
        self.grace: float | None = grace
        self.blind_after: float | None = None  # seconds after the request at which force begins, if its target is blind
        self.is_call_awaited: bool = False  # whether it is blind shows when the call of an executor is over
        self.has_listener: bool = False  # a hook or a remote is told
        self.requested_at: float = clock.coarse.update()  # checks from now on are seen to be later
        self.acknowledged_at: float | None = None
        self._delays: dict[Rung, float] | None = None
        self._waiters: tuple[Callable[[], None], ...] = ()
        self._unacknowledged = 1  # this process, and every notified remote
        self._by_run: ByRun | None = None

    def by_run(self) -> ByRun:
        """Return what the stop reached, by run."""
        if self._by_run is None:
            self._by_run = ByRun(self)
        return self._by_run

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

    def mark_blind(self) -> None:
        """Find out whether the subtree is blind: nothing in it would notice the stop.

        It has no hook and no remote, is inside no boundary, and has reached no check for longer than ``blind_grace``,
        or two seconds if that is more: with a ``blind_grace`` of zero, code that checks now and then is not blind.
        While a call that an executor makes for it is in flight, that is not known yet.
        """
        is_waiting = self.mode is Mode.GRACEFUL and self.grace is None and self.target.started_at is not None
        if is_waiting and not self.has_listener and not any(boundary.is_look for _, boundary in self.in_flight):
            since = self.requested_at - max(self.target.policy.blind_grace, _FRESH_SECONDS) - clock.COARSE_SECONDS
            if not self._has_checked_since(since):
                self.is_call_awaited = bool(self.in_flight)
                self.blind_after = None if self.in_flight else self.target.policy.blind_wait

    def recheck_blind(self) -> bool:
        """Return whether a blind target has reached a check since: then it gets the full grace."""
        # Not after its end: the check was made by leftovers of the run, which get no more time.
        is_news = self.is_blind and self.target.outcome is None and self._has_checked_since(self.requested_at)
        if is_news:
            self.blind_after = None
        return is_news

    def recheck_call(self) -> bool:
        """Return whether the target is blind after all: the call of an executor is over, and it reached no check."""
        if self.target.outcome is not None or not self.is_call_awaited:
            return False
        if any(boundary in (run.members or ()) for run, boundary in self.in_flight):
            return False
        self.is_call_awaited = False
        if not self._has_checked_since(self.requested_at):
            policy = self.target.policy
            self.blind_after = min(clock.now() - self.requested_at + policy.blind_wait, policy.grace + policy.interrupt)
        return self.is_blind

    @property
    def is_blind(self) -> bool:
        """Whether its target is blind, so that waiting for a check is in vain."""
        return self.blind_after is not None

    def _has_checked_since(self, at: float) -> bool:
        return any(run.checked_at >= at for run in self.nodes)

    def schedule(self) -> Iterator[tuple[Rung, float]]:
        """Yield the rungs above SIGNAL, each with the seconds after the request at which it begins."""
        return self.plan() if self._delays is None else self._delayed(self._delays)

    def _delayed(self, delays: Mapping[Rung, float]) -> Iterator[tuple[Rung, float]]:
        delay = 0.0
        for rung, seconds in self.plan():
            delay += delays.get(rung, 0.0)
            yield rung, seconds + delay

    def plan(self) -> Iterator[tuple[Rung, float]]:
        """Yield what ``schedule()`` would be if time had always counted."""
        return self.target.policy.schedule(self.mode, self.grace, self.blind_after)

    def seconds_before(self, rung: Rung) -> float:
        """Return how long the rung below lasts, by the policy."""
        steps = [(Rung.SIGNAL, 0.0), *self.plan()]
        return next(at - before for (_, before), (each, at) in pairwise(steps) if each is rung)

    def delay(self, rung: Rung, seconds: float) -> None:
        """Postpone a rung, and with it those above: for so long, what has to act on the one below could not."""
        self._delays = {**(self._delays or {}), rung: seconds}

    @property
    def is_delayed(self) -> bool:
        """Whether a rung was postponed."""
        return self._delays is not None

    @property
    def kill_at(self) -> float | None:
        """When KILL is due; no shield lasts longer."""
        for rung, seconds in self.schedule():
            if rung is Rung.KILL:
                return self.requested_at + seconds
        return None


class Due:
    """The hooks and remotes that stops must notify after marking their subtrees; each hook was claimed."""

    __slots__ = ("hooks", "remotes")

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.remotes: list[tuple[RemoteParticipant, Stop]] = []

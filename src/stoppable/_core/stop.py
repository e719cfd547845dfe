"""Stops: whom they reach, and their receipts with the fate of each effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from stoppable._core import clock, participants
from stoppable._core.participants import lock
from stoppable._core.values import Fate, Mode, Policy, Reason, Rung, Status
from stoppable.errors import AgentStopped

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary
    from stoppable._core.hooks import Hook
    from stoppable._core.node import RunNode
    from stoppable._core.participants import RemoteParticipant


T = TypeVar("T")

Abandoned: TypeAlias = tuple[str, tuple[str, ...]]
"""The name and the stack of a participant that could not be ended."""


class Reach:
    """What a stop reached, in its whole tree or in a part of it. The lists only grow."""

    __slots__ = ("abandoned", "after", "idle", "in_flight", "nodes")

    def __init__(self, nodes: list[RunNode]) -> None:
        self.nodes: list[RunNode] = nodes
        # Lists are created only when needed: most stops need none, and ten thousand at once would make the garbage
        # collector scan everything.
        self.in_flight: Sequence[tuple[RunNode, Boundary]] = ()
        self.idle: Sequence[Boundary] = ()  # of those: streams that were not being read
        self.after: Sequence[tuple[RunNode, str]] = ()
        self.abandoned: Sequence[tuple[RunNode, Abandoned]] = ()

    def note_in_flight(self, run: RunNode, boundary: Boundary) -> None:
        """Record a boundary that was open at the stop."""
        with lock:
            self.in_flight = _appended(self.in_flight, (run, boundary))
            if boundary.is_idle:
                self.idle = _appended(self.idle, boundary)

    def note_after(self, entry: tuple[RunNode, str]) -> None:
        """Record a boundary that was entered after the stop; every stop of its run records the same entry."""
        with lock:
            self.after = _appended(self.after, entry)

    def note_abandoned(self, run: RunNode, name: Abandoned) -> None:
        """Record a participant that could not be ended."""
        with lock:
            self.abandoned = _appended(self.abandoned, (run, name))


def _appended(entries: Sequence[T], entry: T) -> Sequence[T]:
    if not isinstance(entries, list):
        return [entry]
    entries.append(entry)
    return entries


class ByRun:
    """What a stop reached, by run: thousands of runs may want a receipt, and each costs no more than its subtree."""

    __slots__ = ("_abandoned", "_after", "_children", "_in_flight", "_whole")

    def __init__(self, whole: Reach) -> None:
        self._whole = whole
        self._children: _Groups[RunNode] = _Groups(attrgetter("parent"))
        self._in_flight: _Groups[tuple[RunNode, Boundary]] = _Groups(itemgetter(0))
        self._after: _Groups[tuple[RunNode, str]] = _Groups(itemgetter(0))
        self._abandoned: _Groups[tuple[RunNode, Abandoned]] = _Groups(itemgetter(0))

    def children(self, run: RunNode) -> Sequence[RunNode]:
        """Return the children of a run that the stop reached."""
        return self._children.of(run, self._whole.nodes)

    def part(self, run: RunNode) -> Reach:
        """Return what the stop reached in the subtree of a run, in the same order."""
        whole, later = self._whole, [run]
        runs: dict[RunNode, None] = {}  # a child that was added while its tree was being marked is recorded twice
        while later:
            each = later.pop()
            runs[each] = None
            later.extend(reversed(self.children(each)))
        part = Reach(list(runs))
        part.in_flight = [entry for each in runs for entry in self._in_flight.of(each, whole.in_flight)]
        part.after = [entry for each in runs for entry in self._after.of(each, whole.after)]
        part.abandoned = [entry for each in runs for entry in self._abandoned.of(each, whole.abandoned)]
        if whole.idle:
            open_here = {boundary for _, boundary in part.in_flight}
            part.idle = [boundary for boundary in whole.idle if boundary in open_here]
        return part


class _Groups(Generic[T]):
    """The entries of a list that grows, grouped by run; every entry is looked at once."""

    __slots__ = ("_by_run", "_count", "_run_of")

    def __init__(self, run_of: Callable[[T], Any]) -> None:
        self._run_of = run_of
        self._count = 0
        self._by_run: dict[RunNode, list[T]] = {}

    def of(self, run: RunNode, entries: Sequence[T]) -> Sequence[T]:
        """Return the entries of a run."""
        end = len(entries)
        if self._count < end:
            with lock:
                self._look_at(entries, end)
        return self._by_run.get(run, ())

    def _look_at(self, entries: Sequence[T], end: int) -> None:
        while True:
            # No call in between, at which a signal handler might stop a run and look at the same entry (see Gate).
            number = self._count
            if number >= end:
                return
            self._count = number + 1
            self._by_run.setdefault(self._run_of(entries[number]), []).append(entries[number])


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
class ReceiptEntry:
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
    entries: tuple[ReceiptEntry, ...] = ()
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
        self.requested_at: float = clock.now()
        clock.coarse.now = self.requested_at  # checks from now on are seen to be later
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


class Notifications:
    """The hooks and remotes that stops must notify after marking their subtrees; each hook was claimed."""

    __slots__ = ("hooks", "remotes")

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.remotes: list[tuple[RemoteParticipant, Stop]] = []


def fate_of(run: RunNode, error: BaseException | None) -> Fate:
    """Return how an effect ended: on its own, by the stop, or by a rung, but only if that rung really ended it."""
    if error is None:
        return Fate.FINISHED
    cause = _cause(error)
    if isinstance(cause, AgentStopped):
        return Fate.INTERRUPTED if cause.by_force else Fate.CLOSED
    is_forced = run.rung is not None and run.rung >= Rung.CANCEL
    if cause is not None and (cause is error or is_forced):  # else a cancel of its own, such as that of a timeout
        return Fate.KILLED if run.rung is not None and run.rung >= Rung.KILL else Fate.CANCELLED
    if isinstance(error, GeneratorExit):
        return Fate.CLOSED  # its consumer left it
    return Fate.INTERRUPTED if run.was_interrupted else Fate.FINISHED


def _cause(error: BaseException) -> BaseException | None:
    """Return the stop or cancel that ended an effect: the error itself, or the exception that was being handled."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, (AgentStopped, *participants.engine.cancels)):
        if isinstance(link, BaseExceptionGroup):  # an exception group: the stop, if the group contains nothing else
            causes = [_cause(inner) for inner in link.exceptions]
            if None not in causes:
                return next((cause for cause in causes if isinstance(cause, AgentStopped)), causes[0])
        link = link.__context__
    return link


def write_receipt(run: RunNode, answer: Answer, *, with_entries: bool = True) -> Receipt:
    """Return the current receipt; it has entries once the run has ended, one for each run below it."""
    stops = run.stops()
    outcome = run.outcome
    status = run.status
    ended_at = None if outcome is None else outcome.at
    if not stops:
        return Receipt(run_id=run.id, answer=answer, status=status, ended_at=ended_at)
    parts = [stop if stop.target is run else stop.by_run().part(run) for stop in stops]
    in_flight = {boundary: node for part in parts for node, boundary in part.in_flight}
    return Receipt(
        run_id=run.id,
        answer=answer,
        status=status,
        mode=max((stop.mode for stop in stops), key=lambda mode: mode.rank),
        reason=stops[0].reason,
        in_flight=_labels(parts, in_flight),
        entries=tuple(_entries(parts, in_flight)) if with_entries and status.terminal else (),
        entered_after=_entered_after(parts),
        too_late=status in {Status.COMPLETED, Status.FAILED},
        requested_at=stops[0].requested_at,
        acknowledged_at=stops[0].acknowledged_at,
        delivered_at=run.delivered_at,
        ended_at=ended_at,
        blind=any(stop.is_blind for stop in stops) if outcome is None else run.was_blind,
        library_threads=run.library_threads,
        unguarded=run.unguarded,
        ladder=_ladder(run, stops, is_final=status.terminal),
    )


def _ladder(run: RunNode, stops: list[Stop], *, is_final: bool) -> tuple[Step, ...]:
    first, climbed = stops[0], run.climbs
    if not (climbed or is_final or first.is_delayed) and len(stops) == 1:  # the usual case, and the same for many runs
        return _plan(first.target.policy, first.mode, first.grace, first.blind_after)
    steps = tuple(Step(rung=rung, after=at - first.requested_at) for rung, at in climbed)
    if is_final:
        return steps
    planned: dict[Rung, float] = {}
    for stop in stops:
        for rung, seconds in stop.schedule():
            after = stop.requested_at - first.requested_at + seconds
            planned[rung] = min(after, planned.get(rung, after))
    as_of_stop = {step.rung for step in steps}
    return (*steps, *(Step(rung=rung, after=after) for rung, after in planned.items() if rung not in as_of_stop))


@lru_cache(64)
def _plan(policy: Policy, mode: Mode, grace: float | None, blind_after: float | None) -> tuple[Step, ...]:
    steps = policy.schedule(mode, grace, blind_after)
    return tuple(Step(rung=rung, after=after) for rung, after in steps)


def _entered_after(parts: list[Reach]) -> tuple[str, ...]:
    # By identity: each stop of a run records the same entry.
    entries = {id(entry): entry for part in parts for entry in part.after}
    return tuple(label for _, label in entries.values())


def _labels(parts: list[Reach], in_flight: dict[Boundary, RunNode]) -> tuple[str, ...]:
    """Return the labels of boundaries in flight, except streams that were not being read at any of the stops."""
    idle = Counter(boundary for part in parts for boundary in part.idle)
    total = Counter(boundary for part in parts for _, boundary in part.in_flight) if idle else idle
    return tuple(one.label for one in in_flight if not idle or idle[one] < total[one])


# The constructor of a frozen dataclass takes twice as long, which a tree of ten thousand runs feels: its receipt is
# written on the thread that stores the stops of all others ("the receipt of a tree" in bench/results/core.md).
_SET_RUN_ID, _SET_KIND, _SET_NAME, _SET_FATE, _SET_STACK = (
    getattr(ReceiptEntry, one.name).__set__ for one in fields(ReceiptEntry)
)


def _entry_of_run(run: RunNode) -> ReceiptEntry:
    entry = object.__new__(ReceiptEntry)
    _SET_RUN_ID(entry, run.id)
    _SET_KIND(entry, "run")
    _SET_NAME(entry, run.name)
    _SET_FATE(entry, run.status)
    _SET_STACK(entry, ())
    return entry


def _entries(parts: list[Reach], in_flight: dict[Boundary, RunNode]) -> Iterator[ReceiptEntry]:
    # A dict, because a child that was added while its tree was being marked is recorded twice.
    for node in dict.fromkeys(node for part in parts for node in part.nodes):
        yield _entry_of_run(node)
    for node, (name, stack) in (pair for part in parts for pair in part.abandoned):
        yield ReceiptEntry(run_id=node.id, kind="participant", name=name, fate=Fate.ABANDONED, stack=stack)
    for boundary, node in in_flight.items():
        yield ReceiptEntry(
            run_id=node.id, kind=boundary.kind, name=boundary.name or "", fate=boundary.fate or Fate.ABANDONED
        )

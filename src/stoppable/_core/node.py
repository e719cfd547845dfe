"""A run: its place in the tree, its gate, its stops, what it reports to the layers above, and how it ends.

Entering the gate takes no lock. A new member first publishes itself among the members and then reads ``closed``; a stop
first sets ``closed`` and then takes the snapshot. So either the new member sees the flag, or the snapshot contains the
member, and nothing enters unseen (G1). Adding a key to a dict, popping it and copying the keys are atomic in CPython;
popping a member claims it, and exactly one caller succeeds.

Everything rarer (a stop, its delivery, the end of a run) happens under ``lock``: one for the process, held for a few
lines, never while calling out. It is re-entrant because a signal handler may stop a run while it interrupts a thread
that holds it. Python runs signal handlers only at calls and at the top of loops, so a test and the assignment after it
are one step to them.

Names without an underscore are for the rest of the library; users see those of ``Run`` only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, TypeVar

from stoppable._core import clock, context, participants
from stoppable._core.context import Token
from stoppable._core.hooks import Hook, Moment, call_hooks, stops_under_way
from stoppable._core.participants import Member, Participant, Role, lock
from stoppable._core.run import Budget, Partial, Run
from stoppable._core.stop import CHANGES, Abandoned, Answer, Notifications, Receipt, Stop, write_receipt
from stoppable._core.values import Limits, Mode, Outcome, Policy, Reason, ReasonKind, Rung, Status, new_id, seconds
from stoppable.errors import AgentStopped

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary


M = TypeVar("M", bound=Member)


class Sink:
    """Receives the reports of a run and its subtree, from the run's code: must return at once and not raise."""

    __slots__ = ()

    def began(self, run: RunNode) -> None:
        """Record that the body of a run begins; it may be a child that was not reported before."""

    def stopping(self, stop: Stop) -> None:
        """Record that a run was stopped; may be called in a signal handler."""

    def ended(self, run: RunNode) -> None:
        """Record that a run has its outcome; called before waiting callers are woken. It may never have begun."""

    def died(self, run: RunNode) -> None:
        """Record that nothing is left of a lost run; may be called more than once."""

    def entered(self, run: RunNode, boundary: Boundary) -> None:
        """Record that a boundary was entered."""

    def left(self, run: RunNode, boundary: Boundary) -> None:
        """Record that a boundary was left."""

    def partial(self, run: RunNode, value: object, *, appended: bool) -> None:
        """Record that the partial of the run was replaced by a value, or extended by it."""

    def annotated(self, run: RunNode, metadata: dict[str, object]) -> None:
        """Record facts about the run, which replace those of the same names."""

    def event(self, run: RunNode, kind: str, data: dict[str, object]) -> None:
        """Record progress of the run."""


def emit(kind: str, /, **data: object) -> None:
    """Report progress of the current run as an event."""
    run = context.current_node()
    if run is not None and run.sink is not None:
        run.sink.event(run, kind, data)


# Plain attributes implement the read-only properties of Run, because they are faster to read; pyright rejects that.
# pyright: reportIncompatibleVariableOverride=false, reportIncompatibleMethodOverride=false


# Bound once: before 3.12, reading an enum member is slower than the call it is passed to.
_PENDING, _RUNNING, _STOPPING = Status.PENDING, Status.RUNNING, Status.STOPPING
_COMPLETED, _FAILED, _STOPPED, _LOST = Status.COMPLETED, Status.FAILED, Status.STOPPED, Status.LOST

_DEFAULT_POLICY = Policy()
_NO_LABELS: Mapping[str, str] = {}
_LATER_STOPS_KEPT = 64
_BOUNDARY, _HOOK, _REMOTE, _AT_STOP = Role.BOUNDARY, Role.HOOK, Role.REMOTE, Moment.STOP
_LISTENING = (Moment.STOP, Moment.INTERRUPT)
_ACCEPTED = Answer.ACCEPTED
_MOST_UNGUARDED = 20


class RunNode(Run):
    """The node behind a run, with the state and methods that the engine needs."""

    __slots__ = (
        "__weakref__",
        "_clean",
        "_later",
        "_metadata",
        "_next",
        "_on_end",
        "_previous",
        "body_end",
        "budget",
        "checked_at",
        "climbs",
        "closed",
        "delivered_at",
        "first_child",
        "first_stop",
        "id",
        "labels",
        "library_threads",
        "main",
        "members",
        "name",
        "noticed",
        "outcome",
        "owner",
        "parent",
        "policy",
        "recorded",
        "rung",
        "sink",
        "started_at",
        "unguarded",
        "was_blind",
        "was_interrupted",
    )

    def __init__(
        self,
        name: str,
        parent: RunNode | None = None,
        *,
        run_id: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.id: str = run_id or new_id()
        self.name: str = name
        self.parent: RunNode | None = parent
        self.started_at: float | None = None
        self.closed: bool = False
        self.members: dict[Member, bool] | None = None  # created for the first: most runs of a large tree have none
        self.first_child: RunNode | None = None
        self._next: RunNode | None = None  # the sibling after it
        self._previous: RunNode | None = None  # the sibling before it; None without a parent
        self.main: Participant | None = None
        self.recorded: Partial | None = None
        self.first_stop: Stop | None = None  # the one whose reason counts
        self._metadata: dict[str, object] | None = None  # created for the first fact: most runs have none
        self._later: list[Stop] | None = None
        self.delivered_at: float | None = None
        # When its code last reached a boundary, a check, ``should_stop()`` or a child.
        self.checked_at: float = -math.inf
        # Whether its code has noticed the stop, by AgentStopped or should_stop(), and may be unwinding.
        self.noticed: bool = False
        self._clean: bool | None = True  # False once force has cut a clean-up, None if it may have
        self.was_blind: bool = False  # at its end
        self.was_interrupted: bool = False  # hooks were called at INTERRUPT: they may have ended an effect
        self.rung: Rung | None = None
        self.climbs: tuple[tuple[Rung, float], ...] = ()
        self.body_end: tuple[object, BaseException | None] | None = None
        self.outcome: Outcome[Any] | None = None
        self.library_threads: tuple[str, ...] = ()  # as the agent process reported them, or as they are at its end
        self.unguarded: tuple[str, ...] = ()  # connections that code of its subtree made outside every boundary
        self._on_end: list[Callable[[], None]] = []
        self.budget: Budget | None = None
        if parent is None:
            self.owner: str | None = owner
            self.labels: Mapping[str, str] = dict(labels) if labels else _NO_LABELS
            self.policy: Policy = policy or _DEFAULT_POLICY
            self.sink: Sink | None = None
        else:
            self.owner = owner or parent.owner
            self.labels = {**parent.labels, **labels} if labels else parent.labels
            self.policy = policy or parent.policy
            self.budget = parent.budget
            self.sink = parent.sink
        if limits is not None:
            self.budget = Budget(self, limits, self.budget)
        if parent is not None:
            parent._adopt(self)

    # The public interface: see run.py

    @property
    def token(self) -> Token:
        return Token(self)

    @property
    def status(self) -> Status:
        if self.outcome is not None:
            return self.outcome.status
        if self.started_at is None:
            return _PENDING
        return _RUNNING if self.first_stop is None else _STOPPING

    @property
    def partial(self) -> object:
        return None if self.recorded is None else self.recorded.value()

    @property
    def receipt(self) -> Receipt | None:
        return None if self.first_stop is None else write_receipt(self, Answer.ACCEPTED)

    @property
    def in_flight(self) -> tuple[str, ...]:
        probe = Stop(self, Mode.COOPERATIVE, Reason())  # only collects boundaries, and is never requested
        self._mark_in_flight(probe)
        return tuple(boundary.label for _, boundary in probe.in_flight if boundary not in probe.idle)

    @property
    def metadata(self) -> Mapping[str, object]:
        return dict(self._metadata or ())

    def annotate(self, **metadata: object) -> None:
        with lock:
            self._metadata = {**(self._metadata or {}), **metadata}
        if self.sink is not None:
            self.sink.annotated(self, metadata)

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.name!r} {self.status}>"

    # Its members: published first, then the gate is checked, so that a stop misses none of them

    def admit(self, member: Member) -> None:
        """Publish a member; the caller reads ``closed`` next."""
        members = self.members
        if members is None:
            members = self.make_members()
        members[member] = True

    def make_members(self) -> dict[Member, bool]:
        with lock:
            members = self.members
            if members is None:
                members = self.members = {}
            return members

    def withdraw(self, member: Member) -> bool:
        """Remove a member; returns True to the one caller that removed it."""
        members = self.members
        return members is not None and members.pop(member, False)

    def members_of(self, kind: type[M]) -> list[M]:
        """Return the current members of one kind."""
        members = self.members
        return [member for member in list(members) if isinstance(member, kind)] if members else []

    # Stopping it

    def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
    ) -> Receipt:
        grace = None if grace is None else seconds(grace, "grace")
        stop = Stop(self, Mode.of(mode), Reason.of(reason, actor=actor), grace)
        return write_receipt(self, RunNode.tell([stop])[0])

    @staticmethod
    def tell(stops: Sequence[Stop]) -> list[Answer]:
        """Carry out stops and return what each changed; all subtrees are marked before any hook is called."""
        due = Notifications()
        stops_under_way[due] = True
        try:
            return RunNode._tell(stops, due)
        finally:
            stops_under_way.pop(due, None)  # there is none in a process that was forked meanwhile

    @staticmethod
    def _tell(stops: Sequence[Stop], due: Notifications) -> list[Answer]:
        new_stops: list[Stop] = []
        answers: list[Answer] = []
        for stop in stops:
            with lock:
                answer = stop.target._request(stop)
                if answer in CHANGES:
                    stop.target._mark(stop, due)
                    new_stops.append(stop)
            answers.append(answer)
        for remote, stop in due.remotes:
            remote.tell(stop)
        for stop in new_stops:
            participants.engine.climb(stop)
            if stop.target.sink is not None:
                stop.target.sink.stopping(stop)
        if due.hooks:
            call_hooks(due.hooks)
        return answers

    def _request(self, stop: Stop) -> Answer:
        """Return what a stop changes, given earlier stops."""
        if self.outcome is not None or (self.body_end is not None and self.delivered_at is None):
            return Answer.ALREADY_FINISHED
        if self.first_stop is None:
            return _ACCEPTED
        earlier = self.stops()
        if stop.mode > max(earlier, key=lambda other: other.mode.rank).mode:
            return Answer.ESCALATED
        if len(earlier) <= _LATER_STOPS_KEPT:
            self._note(stop)
            if not any(other.target is self for other in earlier):
                # An ancestor's stop reached it first; this one still answers with what is in flight here.
                self._mark_in_flight(stop)
        return Answer.ALREADY_STOPPING

    def _mark(self, stop: Stop, due: Notifications) -> None:
        """Close the gates of the whole subtree; collect hooks and remotes to notify later, outside the lock (G12)."""
        first_remote = len(due.remotes)
        self._note(stop)
        self.closed = True
        if self.members:
            self._reach_members(stop, due)
        nodes, later = stop.nodes, [] if self.first_child is None else [self.first_child]
        # In one pass, each run before its children: a second pass over ten thousand runs would double the cost.
        while later:
            run: RunNode | None = later.pop()
            while run is not None:
                nodes.append(run)
                if not run.closed:
                    run.first_stop = stop
                    run.closed = True
                elif run.outcome is None:  # a run that has ended does not change, but a part of it may be alive
                    run._note(stop)
                if run.members:
                    run._reach_members(stop, due)
                if run.first_child is None:
                    run = run._next
                else:
                    if run._next is not None:
                        later.append(run._next)
                    run = run.first_child
        if len(due.remotes) > first_remote:
            stop.expect(len(due.remotes) - first_remote)
        stop.mark_blind()
        stop.acknowledge()

    def _reach_members(self, stop: Stop, due: Notifications) -> None:
        # The role identifies the class, which type checkers do not know; isinstance would be slower.
        for member in list(self.members or ()):
            role = member.role  # type checkers do not know that the role implies the class
            if role is _BOUNDARY:
                stop.note_in_flight(self, member)  # type: ignore[arg-type]
            elif role is _HOOK:
                if self.outcome is not None:
                    continue
                if member.is_look and member.moment in _LISTENING:  # type: ignore[attr-defined]
                    stop.has_listener = True
                if member.moment is _AT_STOP and self.withdraw(member):  # type: ignore[attr-defined]
                    due.hooks.append(member)  # type: ignore[arg-type]
            elif role is _REMOTE:
                stop.has_listener = True
                due.remotes.append((member, stop))  # type: ignore[arg-type]

    def _mark_in_flight(self, stop: Stop) -> None:
        nodes = [self]
        for run in nodes:
            nodes += run.list_children()
            for member in list(run.members or ()):
                if member.role is _BOUNDARY:  # type checkers do not know that the role implies the class
                    stop.note_in_flight(run, member)  # type: ignore[arg-type]

    def _note(self, stop: Stop) -> None:
        if self.first_stop is None:
            self.first_stop = stop
        elif self.first_stop is not stop:
            self._later = [*(self._later or ()), stop]

    def stops(self) -> list[Stop]:
        return [] if self.first_stop is None else [self.first_stop, *(self._later or ())]

    # Delivery

    def run_here(self) -> RunNode:
        return self

    def answer_should_stop(self) -> bool:
        """Return True from ``should_stop()``, which counts as a delivery; the caller takes part in the run."""
        participants.engine.attend(self)
        self.deliver(raised=True)
        return True

    def raise_stopped(self) -> Never:
        """Raise AgentStopped, which is a delivery."""
        self.deliver(raised=True)
        if self.first_stop is None:
            raise AgentStopped(self.id, Reason.of("the run has finished", kind=ReasonKind.POLICY))
        raise AgentStopped(self.first_stop.target.id, self.first_stop.reason)

    def deliver(self, *, raised: bool = False) -> None:
        """Record that the run's code has noticed the stop; has no effect once its body has ended."""
        with lock:
            if self.body_end is None and self.first_stop is not None:
                self.noticed = self.noticed or raised
                if self.delivered_at is None:
                    self.delivered_at = clock.now()

    # The ladder

    def climb(self, rung: Rung) -> bool:
        """Record a rung; False if it was reached before. A run that has ended is climbed for what it left behind."""
        with lock:
            if self.rung is not None and self.rung >= rung:
                return False
            self.rung = rung
            if self.outcome is None:
                self.climbs = (*self.climbs, (rung, clock.now()))
                if rung > Rung.CANCEL:
                    self.note_clean(clean=False)
                self.deliver()
            return True

    def note_unguarded(self, connection: str) -> None:
        """Remember a connection that no boundary was around, for the receipts of this run and those above it."""
        with lock:
            for run in self.lineage():
                if connection not in run.unguarded and len(run.unguarded) < _MOST_UNGUARDED:
                    run.unguarded = (*run.unguarded, connection)

    def note_clean(self, *, clean: bool | None) -> None:
        """Record that a clean-up was cut short (False), or may have been (None); it never improves."""
        if clean is not True and self._clean is not False:
            self._clean = clean

    def kill_at(self) -> float | None:
        return min((at for stop in self.stops() if (at := stop.kill_at) is not None), default=None)

    def participants(self) -> list[Participant]:
        """Return the participants that execute a part of the run, each once."""
        return list(dict.fromkeys(self._executing()))

    def _is_executed(self) -> bool:
        """Whether any of its participants is alive; called whenever one of possibly thousands ends."""
        return any(participant.alive() for participant in self._executing())

    def _executing(self) -> Iterator[Participant]:
        """Yield its own task or thread, those that joined, and those inside a boundary, some of them twice."""
        if self.main is not None:
            yield self.main
        for member in list(self.members or ()):
            # A thread of a foreign pool takes part while it is inside a boundary: its end is not reported. Only a
            # Boundary has that role, and it has a holder.
            who = member.holder if member.role is Role.BOUNDARY else member  # type: ignore[attr-defined]
            if isinstance(who, Participant):
                yield who

    # Hooks

    def add_hook(self, hook: Hook) -> None:
        """Call the hook at its moment, or at once if that has passed."""
        if hook.is_look:
            self.checked_at = clock.coarse.now
        self.admit(hook)
        if self._is_past(hook.moment) and self.withdraw(hook):
            call_hooks([hook])

    def _is_past(self, moment: Moment) -> bool:
        if self.first_stop is None:
            return False
        return self.closed if moment is Moment.STOP else self.rung is not None

    def take_hooks(self, moment: Moment) -> list[Hook]:
        """Return the hooks that are due at a moment; each is returned once."""
        hooks = [hook for hook in self.members_of(Hook) if hook.moment is moment and self.withdraw(hook)]
        self.was_interrupted = self.was_interrupted or (bool(hooks) and moment is Moment.INTERRUPT)
        return hooks

    # Begin and end

    def begin(self, main: Participant) -> None:
        self.main = main
        self.started_at = clock.now()
        if self.sink is not None:
            self.sink.began(self)

    def skip(self) -> None:
        """End a run that was stopped before it began."""
        if self._conclude(_STOPPED) and self.parent is not None:
            self.parent.settle()

    def end(self, result: object, error: BaseException | None) -> None:
        """Record that the body has ended; the status depends on whether a stop was delivered before (G8)."""
        with lock:
            self.main = None
            self.body_end = (result, error)
            is_over = self.delivered_at is None and self._write(_COMPLETED if error is None else _FAILED)
        if not is_over:
            self.settle()
            return
        self._announce()
        if self.parent is not None and self.parent.body_end is not None:
            self.parent.settle()

    def lose(self, abandoned: Sequence[Abandoned] | None = None) -> None:
        """Give up on the run: a part of it may still be alive, and the receipt names that part."""
        if abandoned is None:
            alive = [participant for participant in self.participants() if participant.alive()]
            abandoned = [(other.describe(), other.stack()) for other in alive if other.is_listed]
        if self._conclude(_LOST, abandoned) and self.parent is not None:
            self.parent.settle()

    def settle(self) -> None:
        """Write the terminal status of the run if it has ended, and then those of its ancestors."""
        run: RunNode | None = self
        while run is not None and run._settle_here():  # a loop: a chain may be thousands of runs deep
            run = run.parent

    def _settle_here(self) -> bool:
        """End the run if its body has ended and nothing of the subtree is alive; True if this ended it (G8)."""
        if self.body_end is None:
            return False
        if self.outcome is not None:
            if self._previous is None and self.outcome.status is not _LOST:
                return False  # no parent waits for its leftovers
            if self._is_unsettled():
                return False
            if self.is_alive():
                return True  # its leftovers were given up
            if self.outcome.status is _LOST and self.sink is not None:
                self.sink.died(self)
            return self._leave_parent()
        if self.members and self._is_executed():
            return False
        if self.members and self.first_stop is not None:
            self._close_idle(self.members)
        if self.first_child is None:
            return self._conclude(_STOPPED)
        return self._settle_after_children(self.first_child)

    @staticmethod
    def _close_idle(members: Mapping[Member, bool]) -> None:
        for member in list(members):
            member.body_ended()

    def _settle_after_children(self, first: RunNode) -> bool:
        if first._is_unsettled():
            return False  # before all are listed: this is called at the end of each of possibly thousands
        children = self.list_children()
        if any(child._is_unsettled() for child in children):
            return False
        return self._conclude(_LOST if any(child.is_alive() for child in children) else _STOPPED)

    def _conclude(self, status: Status, abandoned: Sequence[Abandoned] = ()) -> bool:
        """End the run with a terminal status; False if it already has one."""
        if self.recorded is not None and self.recorded.is_automatic:
            self.recorded.value()  # to read what models have answered takes a while: not while holding the lock
        with lock:
            if not self._write(status):
                return False
            if self.first_stop is not None:
                for name in abandoned:
                    self.first_stop.note_abandoned(self, name)
        self._announce()
        return True

    def _write(self, status: Status) -> bool:
        """Write the terminal status, unless it is set: the only place where a run ends (G2). Needs the lock."""
        if status not in self.status.followers:
            return False
        result, error = self.body_end or (None, None)
        partial = None if self.recorded is None else self.recorded.value()
        reason, rung, clean = None, None, self._clean
        if self.first_stop is not None:
            reason, rung = self.first_stop.reason, self.rung or Rung.SIGNAL
            if error is not None and self.delivered_at is not None:
                clean = False  # the error was raised on the way out
            self.library_threads = participants.engine.library_threads(self) or self.library_threads
            # The stop may have a target above, of which that still changes; the receipt of this run is final.
            self.was_blind = any(stop.is_blind for stop in self.stops())
        fields = (status, reason, rung, clean, result, partial, error, clock.now())
        self.outcome = tuple.__new__(Outcome, fields)  # at half the cost of Outcome(…)
        self.closed = True
        if self._previous is not None and not (self.members or self.first_child or self.main):
            self._unlink()  # there is nothing left that a stop could reach
        return True

    def _announce(self) -> None:
        """Leave the tree, and wake callers that wait for the end."""
        # A task or thread that its body did not wait for can still be stopped through its ancestors.
        if self._previous is not None and not self.is_alive():
            self._leave_parent()
        if self.sink is not None:
            self.sink.ended(self)
        self._wake_waiters()

    # Callbacks at its end

    def when_ended(self, wake: Callable[[], None], *, first: bool = False) -> None:
        """Call an internal function at the end, or at once if the run has ended; on request before all others."""
        self._on_end.insert(0 if first else len(self._on_end), wake)  # published first, then checked, as at the gate
        if self.outcome is not None and self.forget(wake):
            wake()

    def forget(self, wake: Callable[[], None]) -> bool:
        """Remove a callback; returns True to the one caller that removed it."""
        try:
            self._on_end.remove(wake)
        except ValueError:
            return False
        return True

    def _wake_waiters(self) -> None:
        waiters = self._on_end
        while waiters:
            try:
                wake = waiters.pop(0)
            except IndexError:
                break  # the last one was just removed
            wake()

    # The tree: the children of a run are a linked list, so that a stop needs no list per run and a child is removed in
    # O(1). ``_previous`` of the first child is the last child. Reading or changing the list requires the lock.

    def _append(self, child: RunNode) -> None:
        """Add a child after the others."""
        first = self.first_child
        if first is None:
            self.first_child = child._previous = child
        else:
            last = first._previous
            assert last is not None, "the first child knows the last one"
            last._next = first._previous = child
            child._previous = last

    def _leave_parent(self) -> bool:
        """Remove it from its parent; False if it has none."""
        with lock:
            if self._previous is None:
                return False
            self._unlink()
            return True

    def _unlink(self) -> None:
        """Unlink it from its siblings."""
        before, after, parent = self._previous, self._next, self.parent
        assert before is not None, "it is one of the children"
        assert parent is not None, "it is one of the children"
        first = parent.first_child
        assert first is not None, "it is one of the children"
        if first is self:
            parent.first_child = after
        else:
            before._next = after
        if before is not self:
            (after or first)._previous = before
        self._previous = self._next = None

    @property
    def children(self) -> tuple[RunNode, ...]:
        return tuple(self.list_children())

    @property
    def root(self) -> RunNode:
        *_, top = self.lineage()
        return top

    def lineage(self) -> Iterator[RunNode]:
        """Yield the run and its ancestors, nearest first."""
        run: RunNode | None = self
        while run is not None:
            yield run
            run = run.parent

    def is_within(self, other: RunNode) -> bool:
        return any(run is other for run in self.lineage())

    def list_children(self) -> list[RunNode]:
        """Return its children, the oldest first."""
        children = []
        with lock:
            child = self.first_child
            while child is not None:
                children.append(child)
                child = child._next
        return children

    def _adopt(self, child: RunNode) -> None:
        """Add a child; if this run was stopped, the child is stopped before it begins (G4)."""
        self.checked_at = clock.coarse.now
        with lock:
            self._append(child)
            if self.closed:
                for stop in self.stops():
                    stop.nodes.append(child)
                    child._note(stop)
                child.rung = self.rung
                child.closed = True

    def is_alive(self) -> bool:
        """Whether anything of the subtree may still execute."""
        nodes: list[RunNode] = [self]
        for run in nodes:
            if run.outcome is None or run._is_executed():
                return True
            nodes += run.list_children()
        return False

    def _is_unsettled(self) -> bool:
        """Whether anything of the subtree may still execute, apart from what was given up."""
        nodes: list[RunNode] = [self]
        for run in nodes:
            if run.outcome is None:
                return True
            if run.outcome.status is not _LOST:
                if run._is_executed():
                    return True
                nodes += run.list_children()
        return False


def node_of(run: Run) -> RunNode:
    """Return the node behind a run."""
    assert isinstance(run, RunNode), "stoppable itself creates every run"
    return run

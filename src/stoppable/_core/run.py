"""A run: one node of the tree, with everything that can happen to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Never

from stoppable._core import clock, participants, receipt
from stoppable._core.budget import Budget
from stoppable._core.gate import Role, lock
from stoppable._core.hooks import Hook, Moment, call_hooks
from stoppable._core.ids import new_id
from stoppable._core.node import Awaited
from stoppable._core.outcome import Outcome
from stoppable._core.partial import Partial
from stoppable._core.policy import Limits, Policy, seconds
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.sink import Sink
from stoppable._core.state import Mode, Rung, Status
from stoppable._core.stop import CHANGES, Abandoned, Answer, Due, Receipt, Stop
from stoppable._core.token import Token
from stoppable.errors import AgentStopped

# Bound once: before 3.12, reading an enum member is slower than the call it is passed to.
_PENDING, _RUNNING, _STOPPING = Status.PENDING, Status.RUNNING, Status.STOPPING
_COMPLETED, _FAILED, _STOPPED, _LOST = Status.COMPLETED, Status.FAILED, Status.STOPPED, Status.LOST

_DEFAULT_POLICY = Policy()
_NO_LABELS: Mapping[str, str] = {}
_LATER_STOPS_KEPT = 64
_BOUNDARY, _HOOK, _REMOTE, _AT_STOP = Role.BOUNDARY, Role.HOOK, Role.REMOTE, Moment.STOP
_ACCEPTED = Answer.ACCEPTED


class Run(Awaited):
    """One addressable execution of an agent."""

    __slots__ = (
        "__weakref__",
        "_budget",
        "_clean",
        "_climbs",
        "_delivered_at",
        "_ended",
        "_later",
        "_library_threads",
        "_looked",
        "_main",
        "_partial",
        "_raised",
        "_rung",
        "_was_interrupted",
        "id",
        "labels",
        "name",
        "owner",
        "policy",
        "started_at",
    )

    def __init__(
        self,
        name: str,
        parent: Run | None = None,
        *,
        run_id: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.id: str = run_id or new_id()
        self.name: str = name
        self.parent = parent
        self.started_at: float | None = None
        self._closed = False
        self._members = None
        self._first = self._next = self._previous = None
        self._main: participants.Participant | None = None
        self._partial: Partial | None = None
        self._stop = self._metadata = None
        self._later: list[Stop] | None = None
        self._delivered_at: float | None = None
        self._looked = False  # at a check, ``should_stop()`` or a child; a boundary shows in the members
        self._raised = False  # its code has noticed the stop, by AgentStopped or should_stop(), and may be unwinding
        self._clean: bool | None = True  # False once force has cut a clean-up, None if it may have
        self._was_interrupted = False  # hooks were called at INTERRUPT: they may have ended an effect
        self._rung: Rung | None = None
        self._climbs: tuple[tuple[Rung, float], ...] = ()
        self._ended: tuple[object, BaseException | None] | None = None
        self._outcome = None
        self._library_threads: tuple[str, ...] = ()  # as the agent process reported them, or as they are at its end
        self._on_end = []
        self._budget: Budget | None = None
        if parent is None:
            self.owner = owner
            self.labels = dict(labels) if labels else _NO_LABELS
            self.policy: Policy = policy or _DEFAULT_POLICY
            self._sink: Sink | None = None
        else:
            self.owner = owner or parent.owner
            self.labels = {**parent.labels, **labels} if labels else parent.labels
            self.policy = policy or parent.policy
            self._budget = parent._budget
            self._sink = parent._sink
        if limits is not None:
            self._budget = Budget(self, limits, self._budget)
        if parent is not None:
            parent._adopt(self)

    # What it is

    @property
    def token(self) -> Token:
        """The read-only view of whether this run was stopped."""
        return Token(self)

    @property
    def status(self) -> Status:
        """The current status."""
        return self._where()

    def _where(self) -> Status:
        if self._outcome is not None:
            return self._outcome.status
        if self.started_at is None:
            return _PENDING
        return _RUNNING if self._stop is None else _STOPPING

    @property
    def outcome(self) -> Outcome[Any] | None:
        """How the run ended, or None while it is alive."""
        return self._outcome

    @property
    def partial(self) -> object:
        """What the run has recorded so far."""
        return None if self._partial is None else self._partial.value()

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the stops of this run so far, or None if it was not stopped."""
        return None if self._stop is None else receipt.write(self, Answer.ACCEPTED)

    @property
    def in_flight(self) -> tuple[str, ...]:
        """The open boundaries of the subtree in this process."""
        seen = Stop(self, Mode.COOPERATIVE, Reason())  # requested of nobody
        self._mark_in_flight(seen)
        return tuple(boundary.label for _, boundary in seen.in_flight if boundary not in seen.idle)

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.name!r} {self.status}>"

    # Stopping it

    def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
    ) -> Receipt:
        """Stop this run and its subtree, and return what was in flight; never fails because of a race (G10).

        May be called from any thread and from a signal handler. When it returns, the gate is closed; the ladder
        continues in the background. A stop in the same or a lower mode changes nothing and returns the same receipt.
        """
        grace = None if grace is None else seconds(grace, "grace")
        stop = Stop(self, Mode.of(mode), Reason.of(reason, actor=actor), grace)
        return receipt.write(self, Run._tell([stop])[0])

    @staticmethod
    def _tell(stops: Sequence[Stop]) -> list[Answer]:
        """Carry out stops, each with its target, and return what each changed; marks all before it calls hooks."""
        due = Due()
        told: list[Stop] = []
        answers: list[Answer] = []
        for stop in stops:
            with lock:
                answer = stop.target._request(stop)
                if answer in CHANGES:
                    stop.target._mark(stop, due)
                    told.append(stop)
            answers.append(answer)
        for remote, stop in due.remotes:
            remote.tell(stop)
        for stop in told:
            participants.climb(stop)
            if stop.target._sink is not None:
                stop.target._sink.stopping(stop)
        call_hooks(due.hooks)
        return answers

    def _request(self, stop: Stop) -> Answer:
        """Return what a stop changes, given earlier stops."""
        if self._outcome is not None or (self._ended is not None and self._delivered_at is None):
            return Answer.ALREADY_FINISHED
        if self._stop is None:
            return _ACCEPTED
        earlier = self._stops()
        if stop.mode > max(earlier, key=lambda other: other.mode.rank).mode:
            return Answer.ESCALATED
        if len(earlier) <= _LATER_STOPS_KEPT:
            self._note(stop)
            if not any(other.target is self for other in earlier):
                # An ancestor's stop reached it first; this one still answers with what is in flight here.
                self._mark_in_flight(stop)
        return Answer.ALREADY_STOPPING

    def _mark(self, stop: Stop, due: Due) -> None:
        """Close the gates of the whole subtree; collect hooks and remotes to notify later, outside the lock (G12)."""
        told = len(due.remotes)
        stop.look_at_target()
        self._note(stop)
        self._closed = True
        if self._members:
            self._reach_members(stop, due)
        nodes, later = stop.nodes, [] if self._first is None else [self._first]
        # In one pass, each run before its children: a second pass over ten thousand runs would double the cost.
        while later:
            run: Run | None = later.pop()
            while run is not None:
                nodes.append(run)
                if not run._closed:
                    run._stop = stop
                    run._closed = True
                elif run._outcome is None:  # a run that has ended does not change, but a part of it may be alive
                    run._note(stop)
                if run._members:
                    run._reach_members(stop, due)
                if run._first is None:
                    run = run._next
                else:
                    if run._next is not None:
                        later.append(run._next)
                    run = run._first
        if len(due.remotes) > told:
            stop.expect(len(due.remotes) - told)
        stop.acknowledge()

    def _reach_members(self, stop: Stop, due: Due) -> None:
        # The role identifies the class, which type checkers do not know; isinstance would be slower.
        for member in list(self._members or ()):
            role = member.role
            if role is _BOUNDARY:
                stop.note_in_flight(self, member)  # type: ignore[arg-type]
            elif role is _HOOK:
                if member.moment is _AT_STOP and self._outcome is None and self._withdraw(member):  # type: ignore[attr-defined]
                    due.hooks.append(member)  # type: ignore[arg-type]
            elif role is _REMOTE:
                due.remotes.append((member, stop))  # type: ignore[arg-type]

    def _mark_in_flight(self, stop: Stop) -> None:
        nodes = [self]
        for run in nodes:
            nodes += run._offspring()
            for member in list(run._members or ()):
                if member.role is _BOUNDARY:  # type checkers do not know that the role implies the class
                    stop.note_in_flight(run, member)  # type: ignore[arg-type]

    def _note(self, stop: Stop) -> None:
        if self._stop is None:
            self._stop = stop
        elif self._stop is not stop:
            self._later = [*(self._later or ()), stop]

    def _stops(self) -> list[Stop]:
        return [] if self._stop is None else [self._stop, *(self._later or ())]

    # Delivery

    def _run_here(self) -> Run:
        return self

    def _answer(self) -> bool:
        """Return True from ``should_stop()``, which counts as a delivery; the caller takes part in the run."""
        participants.attend(self)
        self._deliver(raised=True)
        return True

    def _raise_stopped(self) -> Never:
        """Raise AgentStopped, which is a delivery."""
        self._deliver(raised=True)
        if self._stop is None:
            raise AgentStopped(self.id, Reason.of("the run has finished", kind=ReasonKind.POLICY))
        raise AgentStopped(self._stop.target.id, self._stop.reason)

    def _deliver(self, *, raised: bool = False) -> None:
        """Record that the run's code has noticed the stop; has no effect once its body has ended."""
        with lock:
            if self._ended is None and self._stop is not None:
                self._raised = self._raised or raised
                if self._delivered_at is None:
                    self._delivered_at = clock.now()

    # The ladder

    def _climb(self, rung: Rung) -> bool:
        """Record a rung; False if the run was already there. A run that has ended is climbed for its leftovers."""
        with lock:
            if self._rung is not None and self._rung >= rung:
                return False
            self._rung = rung
            if self._outcome is None:
                self._climbs = (*self._climbs, (rung, clock.now()))
                if rung > Rung.CANCEL:
                    self._note_clean(clean=False)
                self._deliver()
            return True

    def _note_clean(self, *, clean: bool | None) -> None:
        """Record that a clean-up was cut short (False), or may have been (None); it never improves."""
        if clean is not True and self._clean is not False:
            self._clean = clean

    def _kill_at(self) -> float | None:
        return min((at for stop in self._stops() if (at := stop.kill_at) is not None), default=None)

    def _participants(self) -> list[participants.Participant]:
        """Return the participants that execute a part of the run, each once."""
        return list(dict.fromkeys(self._executing()))

    def _is_executed(self) -> bool:
        """Whether any of its participants is alive; called whenever one of possibly thousands ends."""
        return any(participant.alive() for participant in self._executing())

    def _executing(self) -> Iterator[participants.Participant]:
        """Yield its own task or thread, those that joined, and those inside a boundary, some of them twice."""
        if self._main is not None:
            yield self._main
        for member in list(self._members or ()):
            # A thread of a foreign pool takes part while it is inside a boundary: its end is not reported. Only a
            # Boundary has that role, and it has a holder.
            who = member.holder if member.role is Role.BOUNDARY else member  # type: ignore[attr-defined]
            if isinstance(who, participants.Participant):
                yield who

    # Hooks

    def _add_hook(self, hook: Hook) -> None:
        """Call the hook at its moment, or at once if that has passed."""
        self._admit(hook)
        if self._is_past(hook.moment) and self._withdraw(hook):
            call_hooks([hook])

    def _is_past(self, moment: Moment) -> bool:
        if self._stop is None:
            return False
        return self._closed if moment is Moment.STOP else self._rung is not None

    def _take_hooks(self, moment: Moment) -> list[Hook]:
        """Return the hooks that are due at a moment; each is returned once."""
        hooks = [hook for hook in self._list(Hook) if hook.moment is moment and self._withdraw(hook)]
        self._was_interrupted = self._was_interrupted or (bool(hooks) and moment is Moment.INTERRUPT)
        return hooks

    # Begin and end

    def _begin(self, main: participants.Participant) -> None:
        self._main = main
        self.started_at = clock.now()
        if self._sink is not None:
            self._sink.began(self)

    def _skip(self) -> None:
        """End a run that was stopped before it began."""
        if self._conclude(_STOPPED) and self.parent is not None:
            self.parent._settle()

    def _end(self, result: object, error: BaseException | None) -> None:
        """Record that the body has ended; the status depends on whether a stop was delivered before (G8)."""
        with lock:
            self._main = None
            self._ended = (result, error)
            is_over = self._delivered_at is None and self._write(_COMPLETED if error is None else _FAILED)
        if not is_over:
            self._settle()
            return
        self._announce()
        if self.parent is not None and self.parent._ended is not None:
            self.parent._settle()

    def _lose(self, abandoned: Sequence[Abandoned] | None = None) -> None:
        """Give up on the run: a part of it may still be alive, and the receipt names that part."""
        if abandoned is None:
            alive = [participant for participant in self._participants() if participant.alive()]
            abandoned = [(other.describe(), other.stack()) for other in alive if other.is_listed]
        if self._conclude(_LOST, abandoned) and self.parent is not None:
            self.parent._settle()

    def _settle(self) -> None:
        """Write the terminal status if it is true now, for this run and then for its ancestors."""
        run: Run | None = self
        while run is not None and run._settle_here():  # a loop: a chain may be thousands of runs deep
            run = run.parent

    def _settle_here(self) -> bool:
        """End the run if its body has ended and nothing of the subtree is alive; True if this ended it (G8)."""
        if self._ended is None:
            return False
        if self._outcome is not None:
            if self._previous is None and self._outcome.status is not _LOST:
                return False  # no parent waits for its leftovers
            if self._is_unsettled():
                return False
            if self._is_alive():
                return True  # its leftovers were given up
            if self._outcome.status is _LOST and self._sink is not None:
                self._sink.died(self)
            return self._leave_parent()
        if self._members and self._is_executed():
            return False
        if self._first is None:
            return self._conclude(_STOPPED)
        children = self._offspring()
        if any(child._is_unsettled() for child in children):
            return False
        return self._conclude(_LOST if any(child._is_alive() for child in children) else _STOPPED)

    def _conclude(self, status: Status, abandoned: Sequence[Abandoned] = ()) -> bool:
        """End the run with a terminal status; False if it has one."""
        with lock:
            if not self._write(status):
                return False
            if self._stop is not None:
                for name in abandoned:
                    self._stop.note_abandoned(self, name)
        self._announce()
        return True

    def _write(self, status: Status) -> bool:
        """Write the terminal status, unless it is set: the only place where a run ends (G2). Needs the lock."""
        if status not in self._where().followers:
            return False
        result, error = self._ended or (None, None)
        partial = None if self._partial is None else self._partial.value()
        reason, rung, clean = None, None, self._clean
        if self._stop is not None:
            reason, rung = self._stop.reason, self._rung or Rung.SIGNAL
            if error is not None and self._delivered_at is not None:
                clean = False  # something on the way out raised it
            self._library_threads = participants.library_threads(self) or self._library_threads
        fields = (status, reason, rung, clean, result, partial, error, clock.now())
        self._outcome = tuple.__new__(Outcome, fields)  # at half the cost of Outcome(…)
        self._closed = True
        if self._previous is not None and not (self._members or self._first or self._main):
            self._unlink()  # there is nothing left that a stop could reach
        return True

    def _announce(self) -> None:
        """Leave the tree, and wake callers that wait for the end."""
        # A task or thread that its body did not wait for can still be stopped through its ancestors.
        if self._previous is not None and not self._is_alive():
            self._leave_parent()
        if self._sink is not None:
            self._sink.ended(self)
        self._wake_waiters()

    # The tree

    def _adopt(self, child: Run) -> None:
        """Add a child; if this run was stopped, the child is stopped before it begins (G4)."""
        self._looked = True
        with lock:
            self._append(child)
            if self._closed:
                for stop in self._stops():
                    stop.nodes.append(child)
                    child._note(stop)
                child._rung = self._rung
                child._closed = True

    def _is_alive(self) -> bool:
        """Whether anything of the subtree may still execute."""
        nodes: list[Run] = [self]
        for run in nodes:
            if run._outcome is None or run._is_executed():
                return True
            nodes += run._offspring()
        return False

    def _is_unsettled(self) -> bool:
        """Whether anything of the subtree may still execute, apart from what was given up."""
        nodes: list[Run] = [self]
        for run in nodes:
            if run._outcome is None:
                return True
            if run._outcome.status is not _LOST:
                if run._is_executed():
                    return True
                nodes += run._offspring()
        return False

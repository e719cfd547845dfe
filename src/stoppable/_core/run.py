"""A run: one node of the tree, with everything that can happen to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Never

from stoppable._core import clock, port, receipt
from stoppable._core.budget import Budget
from stoppable._core.gate import Gate, Role
from stoppable._core.hooks import Hook, Moment
from stoppable._core.outcome import Outcome
from stoppable._core.partial import Partial
from stoppable._core.policy import Limits, Policy, seconds
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.state import TRANSITIONS, Mode, Rung, Status
from stoppable._core.stop import Answer, Receipt, Stop
from stoppable._core.token import Token
from stoppable.errors import AgentStopped

_DEFAULT_POLICY = Policy()
_NO_LABELS: Mapping[str, str] = {}
_LOG_CAP = 64


@dataclass(frozen=True, slots=True)
class Delivered:
    """Log: the run's code learned of the stop; ``raised`` if by an AgentStopped that unwinds it."""

    at: float
    raised: bool


@dataclass(frozen=True, slots=True)
class Climbed:
    """Log: the ladder reached a rung for this run."""

    at: float
    rung: Rung


@dataclass(frozen=True, slots=True)
class Ended:
    """Log: the body has ended, with a value or an error."""

    at: float
    result: object
    error: BaseException | None


class Run(Gate):
    """One addressable execution of an agent."""

    __slots__ = (
        "__weakref__",
        "_budget",
        "_main",
        "_partial",
        "id",
        "labels",
        "name",
        "owner",
        "parent",
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
        super().__init__()
        self.id = run_id or os.urandom(16).hex()
        self.name = name
        self.parent = parent
        self.started_at: float | None = None
        self._main: port.Participant | None = None
        self._partial: Partial | None = None
        if parent is None:
            self.owner = owner
            self.labels = labels or _NO_LABELS
            self.policy = policy or _DEFAULT_POLICY
            self._budget: Budget | None = None
        else:
            self.owner = owner or parent.owner
            self.labels = {**parent.labels, **labels} if labels else parent.labels
            self.policy = policy or parent.policy
            self._budget = parent._budget
        if limits is not None:
            self._budget = Budget(self, limits, self._budget)
        if parent is not None and not parent._admit(self):
            self._inherit(parent)

    # What it is

    @property
    def token(self) -> Token:
        """The read-only view of whether this run was told to stop."""
        return Token(self)

    @property
    def status(self) -> Status:
        """Where the run stands now."""
        outcome = self.outcome
        if outcome is not None:
            return outcome.status
        if self.started_at is None:
            return Status.PENDING
        return Status.RUNNING if self._first(Stop) is None else Status.STOPPING

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended, or None while it has not."""
        return self._first(Outcome)

    @property
    def partial(self) -> object:
        """What the run has so far."""
        return None if self._partial is None else self._partial.value()

    @property
    def root(self) -> Run:
        """The run at the top of the tree."""
        *_, top = self._lineage()
        return top

    @property
    def receipt(self) -> Receipt | None:
        """What became of the stops of this run so far, or None if nobody stopped it."""
        return None if self._first(Stop) is None else receipt.write(self, Answer.ACCEPTED)

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
        """Stop this run with its subtree and say what was in flight; never fails because of a race (G10).

        Works from any thread and from a signal handler. The gate is closed when it returns; the ladder climbs on its
        own. A stop of the same or a lower mode changes nothing and returns the same receipt.
        """
        stop = Stop(
            self, Mode.of(mode), Reason.of(reason, actor=actor), None if grace is None else seconds(grace, "grace")
        )
        if self.outcome is not None:
            return receipt.write(self, Answer.ALREADY_FINISHED)
        earlier = self._stops()
        if len(self._log) > _LOG_CAP and any(stop.mode <= other.mode for other in earlier):
            return receipt.write(self, Answer.ALREADY_STOPPING)
        answer = self._request(stop)
        if answer is Answer.ALREADY_FINISHED:
            return receipt.write(self, answer)
        # Somebody else's equal stop may still be marking the tree: mark it again rather than wait for them.
        if answer is not Answer.ALREADY_STOPPING or not any(s.target is self and s.acknowledged_at for s in earlier):
            hooks = self._mark(stop)
            if answer is not Answer.ALREADY_STOPPING:
                port.climb(stop)
            self._call(hooks)
        return receipt.write(self, answer)

    def _request(self, stop: Stop) -> Answer:
        """Put a stop into the log; what stands before it decides what it changes."""
        self._log.append(stop)
        answer = Answer.ACCEPTED
        delivered = False
        for entry in self._log:
            match entry:
                case Delivered():
                    delivered = True
                case Ended() if not delivered:
                    return Answer.ALREADY_FINISHED
                case Stop() if entry is stop:
                    return answer
                case Stop() if stop.mode <= entry.mode:
                    answer = Answer.ALREADY_STOPPING
                case Stop() if answer is Answer.ACCEPTED:
                    answer = Answer.ESCALATED
                case _:
                    pass
        raise AssertionError("the stop was appended")

    def _mark(self, stop: Stop) -> list[Hook]:
        """Close the gates of the whole subtree; return the hooks that are due, all of them ours to call (G12)."""
        hooks: list[Hook] = []
        nodes = stop.nodes
        nodes.append(self)
        for run in nodes:  # grows while it is walked
            if run is not self:
                run._log.append(stop)
            run._closed = True
            if not run._members:
                continue
            for member in list(run._members):
                role = member.role
                if role is Role.RUN:
                    nodes.append(member)  # type: ignore[arg-type]  # the role says what it is, at a tenth of the cost
                elif role is Role.BOUNDARY:
                    stop.in_flight.append((run, member))  # type: ignore[arg-type]
                elif role is Role.HOOK and member.moment is Moment.STOP and run._withdraw(member):  # type: ignore[attr-defined]
                    hooks.append(member)  # type: ignore[arg-type]
        stop.acknowledged_at = clock.now()
        return hooks

    def _inherit(self, parent: Run) -> None:
        """Be born stopped, because the parent's gate was closed (G4)."""
        for stop in parent._stops():
            self._log.append(stop)
            stop.nodes.append(self)
        self._closed = True

    def _stops(self) -> list[Stop]:
        return [entry for entry in list(self._log) if isinstance(entry, Stop)]

    # What its own code sees

    def _run_here(self) -> Run:
        return self

    def _answer(self) -> bool:
        """Answer True to ``should_stop()``, which is a delivery."""
        self._deliver(raised=False)
        return True

    def _raise_stopped(self) -> Never:
        """Raise AgentStopped, which is a delivery."""
        self._deliver(raised=True)
        raise self._stopped_error()

    def _stopped_error(self) -> AgentStopped:
        stop = self._first(Stop)
        if stop is None:
            return AgentStopped(self.id, Reason.of("the run has finished", kind=ReasonKind.POLICY))
        return AgentStopped(stop.target.id, stop.reason)

    def _deliver(self, *, raised: bool) -> None:
        for entry in self._log:
            if isinstance(entry, Delivered) and (entry.raised or not raised):
                return
        self._log.append(Delivered(clock.now(), raised))

    def _delivered_at(self) -> float | None:
        entry = self._first(Delivered)
        return None if entry is None else entry.at

    # The ladder

    @property
    def rung(self) -> Rung | None:
        """The highest rung climbed so far."""
        rung = None if self._first(Stop) is None else Rung.SIGNAL
        for entry in self._log:
            if isinstance(entry, Climbed) and (rung is None or entry.rung > rung):
                rung = entry.rung
        return rung

    def _climb(self, rung: Rung) -> bool:
        """Note a rung; False if the run has ended or was already there."""
        if self.outcome is not None or any(isinstance(e, Climbed) and e.rung >= rung for e in self._log):
            return False
        self._log.append(Climbed(clock.now(), rung))
        self._deliver(raised=False)
        return True

    def _kill_at(self) -> float | None:
        return min((at for stop in self._stops() if (at := stop.kill_at) is not None), default=None)

    def _participants(self) -> Iterator[port.Participant]:
        if self._main is not None:
            yield self._main
        for member in list(self._members):
            if isinstance(member, port.Participant):
                yield member

    # Hooks

    def _add_hook(self, hook: Hook) -> None:
        """Call it at its moment, or at once if that has passed."""
        self._members[hook] = True
        if self._is_past(hook.moment) and self._withdraw(hook):
            hook.call()

    def _is_past(self, moment: Moment) -> bool:
        match moment:
            case Moment.STOP:
                return self._closed and self._first(Stop) is not None
            case Moment.INTERRUPT:
                return self._first(Climbed) is not None
            case Moment.END:
                return self.outcome is not None

    def _take_hooks(self, moment: Moment) -> list[Hook]:
        """Return the hooks that are due at a moment; each is given out once."""
        return [m for m in list(self._members) if isinstance(m, Hook) and m.moment is moment and self._withdraw(m)]

    @staticmethod
    def _call(hooks: list[Hook]) -> None:
        # Ours only wake somebody and are called in place; a user's may hang, and must hang nobody else.
        for hook in hooks:
            if hook._context is None:
                hook.call()
        users = [hook for hook in hooks if hook._context is not None]
        if users:
            port.dispatch(users)

    # Its beginning and end

    def _start(self) -> None:
        self.started_at = clock.now()

    def _end(self, result: object, error: BaseException | None) -> None:
        """Note that the body has ended; whether a stop was delivered before this moment decides the status (G8)."""
        self._main = None
        self._log.append(Ended(clock.now(), result, error))
        self._settle()

    def _skip(self) -> None:
        """End a run that was stopped before it began."""
        self._conclude(Outcome(status=Status.STOPPED, reason=self.token.reason, rung=self.rung, at=clock.now()))
        self._settle_up()

    def _lose(self) -> None:
        """Give up: something of it may still be alive."""
        ended = self._first(Ended)
        lost = self._outcome(Status.LOST, ended, clean=False)
        if self._conclude(lost):
            self._settle_up()

    def _settle(self) -> None:
        """Write the terminal status if it is true by now, here and then up the tree."""
        if self._try_settle():
            self._settle_up()

    def _settle_up(self) -> None:
        # A loop, not a recursion: a chain may be thousands of runs deep.
        run = self.parent
        while run is not None and run._try_settle():
            run = run.parent

    def _try_settle(self) -> bool:
        """Conclude the run if its body has ended and nothing of the subtree is alive; True if it is over."""
        ended = self._first(Ended)
        if ended is None:
            return False
        outcome = self.outcome
        if outcome is not None:
            # A lost run whose last participant has died no longer makes its ancestors lost.
            return self.parent is not None and not self._is_alive() and self.parent._withdraw(self)
        if not self._was_delivered_before(ended):
            return self._conclude(self._outcome(Status.FAILED if ended.error else Status.COMPLETED, ended, clean=True))
        if any(p.alive() for p in self._participants()) or any(c.outcome is None for c in self._children()):
            return False
        status = Status.LOST if self._is_alive() else Status.STOPPED
        return self._conclude(self._outcome(status, ended, clean=status is Status.STOPPED and self._is_clean(ended)))

    def _conclude(self, outcome: Outcome) -> bool:
        """Write the terminal status, if nobody has yet: the one place where a run ends (G2)."""
        if outcome.status not in TRANSITIONS[self.status]:
            return False
        self._log.append(outcome)
        if self.outcome is not outcome:
            return False
        self._closed = True
        if self.parent is not None and not (outcome.status is Status.LOST and self._is_alive()):
            self.parent._withdraw(self)
        for hook in self._take_hooks(Moment.END):
            hook.call()
        return True

    def _outcome(self, status: Status, ended: Ended | None, *, clean: bool) -> Outcome:
        return Outcome(
            status=status,
            reason=self.token.reason,
            rung=self.rung,
            clean=clean,
            result=None if ended is None else ended.result,
            partial=self.partial,
            error=None if ended is None else ended.error,
            at=clock.now(),
        )

    def _was_delivered_before(self, ended: Ended) -> bool:
        for entry in self._log:
            if entry is ended:
                return False
            if isinstance(entry, Delivered):
                return True
        raise AssertionError("ended is in the log")

    def _is_clean(self, ended: Ended) -> bool:
        """Whether every ``finally`` is known to have run to its end (G7); False also means "not known"."""
        unwinding = False
        for entry in self._log:
            if entry is ended:
                break
            unwinding = unwinding or (isinstance(entry, Delivered) and entry.raised)
            if isinstance(entry, Climbed) and entry.rung is Rung.CANCEL and unwinding:
                return False  # the cancel may have hit a clean-up
        return ended.error is None and self.rung not in {Rung.KILL, Rung.LOST}

    # The tree

    def _children(self) -> list[Run]:
        return [member for member in list(self._members) if isinstance(member, Run)]

    def _is_alive(self) -> bool:
        """Whether anything of the subtree may still execute."""
        nodes: list[Run] = [self]
        for run in nodes:
            if any(participant.alive() for participant in run._participants()):
                return True
            nodes += run._children()
        return False

    def _lineage(self) -> Iterator[Run]:
        run: Run | None = self
        while run is not None:
            yield run
            run = run.parent

    def _is_within(self, other: Run) -> bool:
        return any(run is other for run in self._lineage())

"""Mirrors the runs of an agent process in the tree of its parent, so that each can be found and stopped by its id."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoppable._core.boundary import Boundary, boundary
from stoppable._core.node import RunNode
from stoppable._core.partial import AutomaticPartial, Partial
from stoppable._core.participants import Participant, RemoteParticipant
from stoppable._core.reason import Reason
from stoppable._core.state import Fate, Rung, Status
from stoppable._core.stop import Stop
from stoppable._engine.isolation.messages import (
    Born,
    Ended,
    Entered,
    Left,
    Message,
    Noted,
    Progress,
    Said,
    Spent,
    Stopping,
    Told,
)


class ChildProcess(RemoteParticipant):
    """The process that executes the mirrored runs."""

    __slots__ = ()

    def pass_on(self, run: RunNode, stop: Stop) -> None:
        """Send a stop of one of its runs to the process; return at once, from any thread and from a signal handler."""
        raise NotImplementedError

    def has_ended(self, run: RunNode) -> None:
        """Record that one of its runs has ended there."""
        raise NotImplementedError


class Inner(RemoteParticipant):
    """The participant of a run inside an agent process, which climbs the ladder itself."""

    __slots__ = ("_process", "_run")

    def __init__(self, run: RunNode, process: ChildProcess) -> None:
        self._run = run
        self._process = process

    def tell(self, stop: Stop) -> None:
        """Pass a stop of this run on; a stop of an ancestor in the same process is sent only once, for the ancestor."""
        if stop.target is self._run:
            self._process.pass_on(self._run, stop)
        else:
            stop.acknowledge()

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Do nothing: killing the process would hit other runs in it (G13)."""

    def alive(self) -> bool:
        """Return True: it is removed from the participants when its end, or that of its process, is known."""
        return True

    def describe(self) -> str:
        """Name the run and its process."""
        return f"{self._run.name} in {self._process.describe()}"


class Mirror:
    """Applies the reports of an agent process to the tree."""

    __slots__ = ("_boundaries", "_heard", "_process", "_root", "_runs")

    def __init__(self, root: RunNode, process: ChildProcess) -> None:
        self._root = root
        self._process = process
        self._runs: dict[str, tuple[RunNode, RemoteParticipant]] = {root.id: (root, process)}
        self._boundaries: dict[int, tuple[RunNode, Boundary]] = {}
        self._heard: Reason | None = None

    def heard(self, stop: Stop) -> bool:
        """Return whether a stop came from the agent process, so that it need not be sent there."""
        return stop.reason is self._heard

    def show(self, message: Message) -> None:
        """Apply a message; messages about runs that have ended are ignored."""
        match message:
            case Born():
                self._born(message)
            case Stopping(run_id, mode, reason, grace) if run_id in self._runs:
                self._heard = reason
                self._runs[run_id][0].stop(mode, reason, grace=grace)
            case Entered(run_id) if run_id in self._runs:
                self._entered(*self._runs[run_id], message)
            case Left(key, fate) if key in self._boundaries:
                self._left(key, fate)
            case Told(run_id, value, appended) if run_id in self._runs:
                _tell_partial(self._runs[run_id][0], value, appended=appended)
            case Said(run_id, text) if run_id in self._runs:
                _keep_text(self._runs[run_id][0], text)
            case Progress(run_id) | Noted(run_id) | Spent(run_id) if run_id in self._runs:
                _note(self._runs[run_id][0], message)
            case Ended(run_id) if run_id in self._runs:
                self._ended(message)
            case _:
                pass

    def _born(self, born: Born) -> None:
        parent, _ = self._runs[born.parent_id]
        if born.has_begun:
            spend(parent, "subrun")
        run = RunNode(
            born.name,
            parent,
            run_id=born.run_id,
            owner=born.owner,
            labels=born.labels,
            policy=born.policy,
        )
        if not born.has_begun:
            run.skip()
            return
        seat = Inner(run, self._process)
        self._runs[run.id] = run, seat
        run.admit(seat)
        run.begin(seat)

    def _entered(self, run: RunNode, seat: RemoteParticipant, message: Entered) -> None:
        entered = boundary(message.kind, message.name)
        entered.holder = seat
        self._boundaries[message.key] = run, entered
        run.admit(entered)
        for stop in run.stops():
            if message.after_stop:
                stop.note_after((run, entered.label))
            else:
                stop.note_in_flight(run, entered)  # the message and the stop crossed
        spend(run, message.kind)
        if run.sink is not None:
            run.sink.entered(run, entered)

    def _left(self, key: int, fate: Fate | None) -> None:
        run, left = self._boundaries.pop(key)
        run.withdraw(left)
        if fate is not None or run.first_stop is not None:
            left._fate = fate or Fate.FINISHED  # it ended before the stop arrived in the agent process
        if run.sink is not None:
            run.sink.left(run, left)

    def _ended(self, message: Ended) -> None:
        run, seat = self._runs[message.run_id]
        outcome = message.outcome
        run.library_threads = message.library_threads
        if outcome.status is Status.LOST:
            run.lose(message.abandoned)  # it can be stopped until the process is gone
            return
        del self._runs[run.id]
        run.withdraw(seat)
        self._process.has_ended(run)
        note_end(run, message)
        run.end(outcome.result, outcome.error)

    def close(self, error: Callable[[RunNode], Exception], *, clean: bool | None) -> None:
        """End the runs that the dead process has left open.

        Work in another service has not died with it, and can no longer be reached: such a run is lost.
        """
        out_of_reach: set[RunNode] = set()
        for key, (run, left) in list(self._boundaries.items()):
            is_remote = left.kind == "remote"
            self._left(key, Fate.UNREACHABLE if is_remote else Fate.KILLED)
            if is_remote and run.first_stop is not None:
                out_of_reach.add(run)
        del self._runs[self._root.id]  # the edge of the root run ends it
        for run, seat in reversed(self._runs.values()):
            if run in out_of_reach:
                run.lose([(f"remote {run.name}", ())])
                continue
            run.withdraw(seat)
            run.note_clean(clean=clean)
            if run.first_stop is None:
                run.end(None, error(run))
            else:
                run.deliver(raised=True)
                run.end(None, None)
        self._runs.clear()


def _note(run: RunNode, message: Progress | Noted | Spent) -> None:
    match message:
        case Progress(_, kind, data):
            if run.sink is not None:
                run.sink.event(run, kind, data)
        case Noted(_, metadata):
            run.annotate(**metadata)
        case Spent(_, kind):
            spend(run, kind)


def spend(run: RunNode, kind: str) -> None:
    """Count a boundary that was entered, or refused, in the agent process."""
    if run.budget is not None:
        run.budget.spend(kind)


def note_end(run: RunNode, ended: Ended) -> None:
    """Record what only the agent process knows: whether the stop was delivered, how clean-up went, what models said."""
    _keep_text(run, ended.outcome.partial)
    for connection in ended.unguarded:
        run.note_unguarded(connection)
    if ended.delivered or ended.outcome.status is Status.STOPPED:  # or it was stopped before it began
        run.deliver(raised=True)
    run.note_clean(clean=ended.outcome.clean)


def _keep_text(run: RunNode, text: object) -> None:
    """Keep what models have said, unless the agent has set a partial of its own, which was told at once."""
    if text is not None and (run.recorded is None or run.recorded.is_automatic):
        run.recorded = AutomaticPartial(text)


def _tell_partial(run: RunNode, value: object, *, appended: bool) -> None:
    if not appended or run.recorded is None or run.recorded.is_automatic:
        run.recorded = Partial(None if appended else value)
    if appended:
        run.recorded.append(value)
    if run.sink is not None:
        run.sink.partial(run, value, appended=appended)

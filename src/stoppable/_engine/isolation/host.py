"""Agent processes as participants, and their runs in the tree of their parent: an agent process can always be ended."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from stoppable._core import clock, context
from stoppable._core.boundary import Boundary, boundary
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant, RemoteParticipant
from stoppable._core.run import AutomaticPartial, Partial
from stoppable._core.stop import Stop
from stoppable._core.values import Fate, Reason, Rung, Status, new_id
from stoppable._engine.agent_functions import body_of
from stoppable._engine.isolation.messages import (
    Acknowledged,
    BoundaryEntered,
    BoundaryLeft,
    ChildStarted,
    Item,
    LimitSpent,
    Message,
    MessageSocket,
    MetadataReported,
    ModelTextReported,
    PartialReported,
    ProgressReported,
    RunEndReported,
    Sender,
    StartAgent,
    StopMessage,
    StopReported,
    Values,
    pack,
)
from stoppable._engine.processes.command import inherited_fds
from stoppable._engine.processes.table import Members, cookie, environment
from stoppable.errors import InvalidArgument, StoppableError


class InnerParticipant(RemoteParticipant):
    """The participant of a run inside an agent process, which climbs the ladder itself."""

    __slots__ = ("_process", "_run")

    def __init__(self, run: RunNode, process: AgentProcess) -> None:
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


class MirroredRuns:
    """Applies the reports of an agent process to the tree."""

    __slots__ = ("_boundaries", "_process", "_reported_reason", "_root", "_runs")

    def __init__(self, root: RunNode, process: AgentProcess) -> None:
        self._root = root
        self._process = process
        self._runs: dict[str, tuple[RunNode, RemoteParticipant]] = {root.id: (root, process)}
        self._boundaries: dict[int, tuple[RunNode, Boundary]] = {}
        self._reported_reason: Reason | None = None

    def came_from_process(self, stop: Stop) -> bool:
        """Return whether a stop came from the agent process, so that it need not be sent there."""
        return stop.reason is self._reported_reason

    def apply(self, message: Message) -> None:
        """Apply a message; messages about runs that have ended are ignored."""
        match message:
            case ChildStarted():
                self._start_run(message)
            case StopReported(run_id, mode, reason, grace) if run_id in self._runs:
                self._reported_reason = reason
                self._runs[run_id][0].stop(mode, reason, grace=grace)
            case BoundaryEntered(run_id) if run_id in self._runs:
                self._enter_boundary(*self._runs[run_id], message)
            case BoundaryLeft(key, fate) if key in self._boundaries:
                self._leave_boundary(key, fate)
            case PartialReported(run_id, value, appended) if run_id in self._runs:
                _tell_partial(self._runs[run_id][0], value, appended=appended)
            case ModelTextReported(run_id, text) if run_id in self._runs:
                _keep_text(self._runs[run_id][0], text)
            case ProgressReported(run_id) | MetadataReported(run_id) | LimitSpent(run_id) if run_id in self._runs:
                _note(self._runs[run_id][0], message)
            case RunEndReported(run_id) if run_id in self._runs:
                self._end_run(message)
            case _:
                pass

    def _start_run(self, message: ChildStarted) -> None:
        parent, _ = self._runs[message.parent_id]
        if message.has_begun:
            spend(parent, "subrun")
        run = RunNode(
            message.name,
            parent,
            run_id=message.run_id,
            owner=message.owner,
            labels=message.labels,
            policy=message.policy,
        )
        if not message.has_begun:
            run.skip()
            return
        seat = InnerParticipant(run, self._process)
        self._runs[run.id] = run, seat
        run.admit(seat)
        run.begin(seat)

    def _enter_boundary(self, run: RunNode, seat: RemoteParticipant, message: BoundaryEntered) -> None:
        effect = boundary(message.kind, message.name)
        effect.holder = seat
        self._boundaries[message.key] = run, effect
        run.admit(effect)
        for stop in run.stops():
            if message.after_stop:
                stop.note_after((run, effect.label))
            else:
                stop.note_in_flight(run, effect)  # the message and the stop crossed
        spend(run, message.kind)
        if run.sink is not None:
            run.sink.entered(run, effect)

    def _leave_boundary(self, key: int, fate: Fate | None) -> None:
        run, effect = self._boundaries.pop(key)
        run.withdraw(effect)
        if fate is not None or run.first_stop is not None:
            effect._fate = fate or Fate.FINISHED  # it ended before the stop arrived in the agent process
        if run.sink is not None:
            run.sink.left(run, effect)

    def _end_run(self, message: RunEndReported) -> None:
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
        for key, (run, effect) in list(self._boundaries.items()):
            is_remote = effect.kind == "remote"
            self._leave_boundary(key, Fate.UNREACHABLE if is_remote else Fate.KILLED)
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


def _note(run: RunNode, message: ProgressReported | MetadataReported | LimitSpent) -> None:
    match message:
        case ProgressReported(_, kind, data):
            if run.sink is not None:
                run.sink.event(run, kind, data)
        case MetadataReported(_, metadata):
            run.annotate(**metadata)
        case LimitSpent(_, kind):
            spend(run, kind)


def spend(run: RunNode, kind: str) -> None:
    """Count a boundary that was entered, or refused, in the agent process."""
    if run.budget is not None:
        run.budget.spend(kind)


def note_end(run: RunNode, report: RunEndReported) -> None:
    """Record what only the agent process knows: whether the stop was delivered, how clean-up went, what models said."""
    _keep_text(run, report.outcome.partial)
    for connection in report.unguarded:
        run.note_unguarded(connection)
    if report.delivered or report.outcome.status is Status.STOPPED:  # or it was stopped before it began
        run.deliver(raised=True)
    run.note_clean(clean=report.outcome.clean)


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


_REAPER = Path(__file__).with_name("reaper.py")


class ReapedProcess:
    """An agent process below its reaper (see ``reaper``), which is the process that this one starts and waits for."""

    def __init__(
        self, command: Sequence[str], *, group_id: str, line: int, inherits: Sequence[int], env: Mapping[str, str]
    ) -> None:
        self.members = Members(group_id)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.reaper = subprocess.Popen(  # noqa: S603 - our own interpreter and script
                    # -I and -S: it needs no packages, and starts in a fraction of the time.
                    [sys.executable, "-I", "-S", str(_REAPER), str(theirs.fileno()), str(line), *command],
                    pass_fds=[theirs.fileno(), line, *inherits],
                    start_new_session=True,
                    env=env,
                )
            except BaseException:
                ours.close()
                raise
        self.members.session = self.reaper.pid
        self._leash = ours
        self._report = b""

    def alive(self) -> bool:
        """Return whether the process, or any that it started, may be alive."""
        if self.reaper.poll() is None:
            return True
        if self._read_report():
            return False
        # The reaper was killed from outside. The agent process has died with it; the rest may have lost its parent.
        self.members.pids()
        return not self.members.is_gone

    def kill(self) -> None:
        """Kill the process and all that it started; returns at once, and may be repeated."""
        if self.reaper.poll() is None:
            with contextlib.suppress(OSError):
                self._leash.send(b"k", socket.MSG_DONTWAIT)
                self.reaper.send_signal(signal.SIGCONT)  # somebody may have suspended it
        elif not self._read_report():
            for pid in self.members.each_for_kill():
                self.members.signal(pid, signal.SIGKILL)

    def wait(self, seconds: float) -> int:
        """Return the exit code of the process, when all that it started has ended too; or raise TimeoutExpired."""
        code = self.reaper.wait(seconds)
        report = self._read_report()
        return int(report) if report else code

    def _read_report(self) -> bytes:
        """Return the last word of the reaper, which has ended; empty if it was killed before it could say it."""
        with contextlib.suppress(OSError):  # the socket is closed
            self._report = self._leash.recv(64, socket.MSG_DONTWAIT | socket.MSG_PEEK)  # any thread may read it
        return self._report

    def close(self) -> None:
        """Close the socket to the reaper, which kills everything if it is alive."""
        self._read_report()
        self._leash.close()


Put: TypeAlias = Callable[[Any], object]

_EXIT_SECONDS = 1.0
_REAP_SECONDS = 5.0

live: set[AgentProcess] = set()
"""The agent processes that may be alive, or may have left live processes behind."""


def _forget() -> None:
    """Close the sockets of agent processes after a fork: otherwise they would not notice the death of their host."""
    for process in live:
        process._line.close()
        process._reaped.close()
    live.clear()


os.register_at_fork(after_in_child=_forget)


class AgentProcessDied(StoppableError):
    """The agent process (``isolation="process"``) ended before its agent did."""

    def __init__(self, run_id: str, returncode: int) -> None:
        super().__init__(run_id, returncode)
        self.run_id = run_id
        self.returncode = returncode

    def __str__(self) -> str:
        how = f"by {signal.Signals(-self.returncode).name}" if self.returncode < 0 else f"with code {self.returncode}"
        return f"the agent process of run {self.run_id} ended {how} before its agent returned"


class AgentProcess(RemoteParticipant):
    """A process that executes the body of a run. It climbs its own ladder; the host sends it stops, and kills it."""

    __slots__ = (
        "_clean",
        "_has_ended",
        "_is_over",
        "_line",
        "_mirror",
        "_numbers",
        "_put",
        "_reaped",
        "_run",
        "_sender",
        "_sent_stops",
    )

    def __init__(self, run: RunNode, request: StartAgent, put: Put | None = None) -> None:
        packed = pack(request)
        ours, theirs = socket.socketpair()
        group_id = new_id()
        with theirs, context.detached():  # a separate participant, not one of the run's plain processes
            try:
                self._reaped = ReapedProcess(
                    [sys.executable, "-m", "stoppable._engine.isolation.child", str(theirs.fileno())],
                    group_id=group_id,
                    line=theirs.fileno(),
                    inherits=inherited_fds(),
                    env={**environment(None, run.id, group_id, cookie()), "PYTHONPATH": _search_path(request)},
                )
            except BaseException:
                ours.close()
                raise
        self._run = run
        self._put = put
        self._line = MessageSocket(ours, self._reaped.reaper, request.values)
        self._sender = Sender(self._line, packed)
        self._mirror = MirroredRuns(run, self)
        self._sent_stops: dict[int, tuple[RunNode, Stop]] = {}
        self._numbers = itertools.count()
        self._has_ended = self._is_over = False
        self._clean: bool | None = None  # None if the process dies on its own; False if the host killed it
        live.add(self)

    # As a participant of the run

    def tell(self, stop: Stop) -> None:
        """Send a stop to the process."""
        self.pass_on(self._run, stop)

    def pass_on(self, run: RunNode, stop: Stop) -> None:
        """Send a stop without waiting: the process may never read, and the control thread must go on (G6)."""
        if self._mirror.came_from_process(stop):
            stop.acknowledge()
            return
        number = next(self._numbers)
        self._sent_stops[number] = run, stop
        if self._is_over:
            self._acknowledge(number)
            return
        self._sender.put(StopMessage(number, run.id, stop.mode, stop.reason, stop.grace))

    def _acknowledge(self, number: int, *, is_blind: bool = False) -> None:
        run, stop = self._sent_stops.pop(number, (None, None))
        if stop is not None:
            if is_blind and stop.target is run:
                stop.blind_after = stop.target.policy.blind_wait  # for the receipt: the agent process climbs the ladder
            stop.acknowledge()

    def has_ended(self, run: RunNode) -> None:
        """Acknowledge the stops of a run: its gate is closed for good, whatever its process reports later."""
        for number, (target, _) in list(self._sent_stops.items()):
            if target is run:
                self._acknowledge(number)

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Kill the process at KILL; before that, it climbs its own ladder."""
        if rung is Rung.KILL:
            for process in targets:
                assert isinstance(process, cls)
                process._kill()

    def _kill(self) -> None:
        self._clean = False
        self._reaped.kill()

    def alive(self) -> bool:
        """Return whether the process, or any that it started, is alive."""
        return self._reaped.alive()

    def describe(self) -> str:
        """Name the process."""
        return f"agent process {self._reaped.reaper.pid}"

    # Messages, on the thread that executes the run's body

    def receive_until_end(self) -> Any:
        """Apply the reports of the process until it has ended; return the agent's value or raise its error."""
        self._sender.start()
        while True:
            match self._line.receive():
                case None:
                    return self._raise_death()
                case RunEndReported(run_id) as report if run_id == self._run.id:
                    return self._finish(report)
                case Acknowledged(number, is_blind):
                    self._acknowledge(number, is_blind=is_blind)
                case Item(value):
                    if self._put is not None:
                        self._put(value)
                case message:
                    self._mirror.apply(message)

    def _finish(self, report: RunEndReported) -> Any:
        self._has_ended = True
        self.has_ended(self._run)
        note_end(self._run, report)  # code that hangs in the process ends with it
        if report.outcome.error is not None:
            raise report.outcome.error
        return report.outcome.result

    def _raise_death(self) -> Any:
        error = self._death(self._run)
        self._run.note_clean(clean=self._clean)
        if self._run.first_stop is not None:
            self._run.raise_stopped()
        raise error

    def _death(self, run: RunNode) -> AgentProcessDied:
        return AgentProcessDied(run.id, self._reaped.wait(_REAP_SECONDS))

    def end(self) -> None:
        """End the process and all that it started, and acknowledge its stops."""
        if self._has_ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._reaped.wait(_EXIT_SECONDS)  # it may still flush its output
        self._line.hang_up()
        self._sender.close(_REAP_SECONDS)
        self._line.close()
        deadline = clock.now() + _REAP_SECONDS
        while self.alive() and clock.now() < deadline:
            self._kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._reaped.wait(0.05)
        self._is_over = True
        for number in list(self._sent_stops):
            self._acknowledge(number)
        if not self.alive():
            live.discard(self)
            self._reaped.close()
            self._mirror.close(self._death, clean=self._clean)
            self._run.withdraw(self)


def _search_path(request: StartAgent) -> str:
    return os.pathsep.join(filter(None, request.path))


def perform_in_process(request: Callable[[RunNode], StartAgent], put: Put | None) -> Any:
    """Execute an agent in an agent process, as the body of a run; no process is left behind."""
    run = context.current_node()
    assert run is not None, "the body of a run"
    process = AgentProcess(run, request(run), put)
    run.admit(process)
    try:
        for stop in run.stops():
            stop.expect(1)
            process.tell(stop)  # it came before the process was admitted
        return process.receive_until_end()
    finally:
        process.end()


def as_process_body(
    agent: Callable[..., Any], args: tuple[Any, ...], values: Values = Values.PICKLE
) -> Callable[[Put | None], Any]:
    """Return a body that runs an agent in an agent process; raise InvalidArgument if it cannot be sent there.

    The body takes a function for the items of a generator, which come as fast as the process makes them. ``values``
    says how values of the agent are transferred.
    """
    kwargs: Mapping[str, Any] = {}
    if isinstance(agent, functools.partial):
        args, kwargs, agent = (*agent.args, *args), agent.keywords, agent.func
    name = _name(agent)

    def request(run: RunNode) -> StartAgent:
        return StartAgent(
            path=list(sys.path),
            agent=name,
            args=args,
            kwargs=kwargs,
            run_id=run.id,
            name=run.name,
            owner=run.owner,
            labels=dict(run.labels),
            policy=run.policy,
            left={} if run.budget is None else run.budget.left(),
            values=values,
        )

    pack(request(RunNode("probe", run_id="probe")))  # raises now, for the caller, if a value cannot be sent
    return functools.partial(perform_in_process, request)


def _name(agent: Callable[..., Any]) -> str:
    """Return ``module:qualified.name``, after checking that it leads to the agent."""
    module, path = getattr(agent, "__module__", None), getattr(agent, "__qualname__", None)
    if module == "__main__":
        raise InvalidArgument(
            f"{path} is defined in the script that was started, which an agent process cannot import: "
            "move it to a module of its own"
        )
    target: Any = sys.modules.get(module or "")
    for part in (path or "").split("."):
        target = getattr(target, part, None)
    if target is None or body_of(target) is not body_of(agent):
        raise InvalidArgument(
            f"{agent!r} cannot be found by its name in an agent process: use a function at the top level of a module"
        )
    return f"{module}:{path}"

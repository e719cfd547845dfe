"""Agent processes as participants: an agent in a separate process can always be ended."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from stoppable._core import clock, context
from stoppable._core.ids import new_id
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.state import Rung
from stoppable._core.stop import Stop
from stoppable._engine.agent_functions import body_of
from stoppable._engine.isolation.child_runs import ChildProcess, Mirror, note_end
from stoppable._engine.isolation.messages import Acknowledged, Ended, Item, Line, Sender, StartAgent, StopRequest, pack
from stoppable._engine.isolation.reaped import ReapedProcess
from stoppable._engine.isolation.values import Values
from stoppable._engine.processes import inherited_fds
from stoppable._engine.processes.orphans import cookie
from stoppable._engine.processes.table import environment
from stoppable.errors import InvalidArgument, StoppableError

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


class WorkerDied(StoppableError):
    """The agent process (``isolation="process"``) ended before its agent did."""

    def __init__(self, run_id: str, returncode: int) -> None:
        super().__init__(run_id, returncode)
        self.run_id = run_id
        self.returncode = returncode

    def __str__(self) -> str:
        how = f"by {signal.Signals(-self.returncode).name}" if self.returncode < 0 else f"with code {self.returncode}"
        return f"the agent process of run {self.run_id} ended {how} before its agent returned"


class AgentProcess(ChildProcess):
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
        "_told",
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
                    inherits=inherited_fds.descriptors(),
                    env={**environment(None, run.id, group_id, cookie()), "PYTHONPATH": _search_path(request)},
                )
            except BaseException:
                ours.close()
                raise
        self._run = run
        self._put = put
        self._line = Line(ours, self._reaped.reaper, request.values)
        self._sender = Sender(self._line, packed)
        self._mirror = Mirror(run, self)
        self._told: dict[int, tuple[RunNode, Stop]] = {}
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
        if self._mirror.heard(stop):
            stop.acknowledge()
            return
        number = next(self._numbers)
        self._told[number] = run, stop
        if self._is_over:
            self._acknowledge(number)
            return
        self._sender.put(StopRequest(number, run.id, stop.mode, stop.reason, stop.grace))

    def _acknowledge(self, number: int, *, is_blind: bool = False) -> None:
        run, stop = self._told.pop(number, (None, None))
        if stop is not None:
            if is_blind and stop.target is run:
                stop.blind_after = stop.target.policy.blind_wait  # for the receipt: the agent process climbs the ladder
            stop.acknowledge()

    def has_ended(self, run: RunNode) -> None:
        """Acknowledge the stops of a run: its gate is closed for good, whatever its process reports later."""
        for number, (told, _) in list(self._told.items()):
            if told is run:
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

    def converse(self) -> Any:
        """Apply the reports of the process until it has ended; return the agent's value or raise its error."""
        self._sender.start()
        while True:
            match self._line.receive():
                case None:
                    return self._died()
                case Ended(run_id) as ended if run_id == self._run.id:
                    return self._ended(ended)
                case Acknowledged(number, is_blind):
                    self._acknowledge(number, is_blind=is_blind)
                case Item(value):
                    if self._put is not None:
                        self._put(value)
                case message:
                    self._mirror.show(message)

    def _ended(self, ended: Ended) -> Any:
        self._has_ended = True
        self.has_ended(self._run)
        note_end(self._run, ended)  # code that hangs in the process ends with it
        if ended.outcome.error is not None:
            raise ended.outcome.error
        return ended.outcome.result

    def _died(self) -> Any:
        error = self._death(self._run)
        self._run.note_clean(clean=self._clean)
        if self._run.first_stop is not None:
            self._run.raise_stopped()
        raise error

    def _death(self, run: RunNode) -> WorkerDied:
        return WorkerDied(run.id, self._reaped.wait(_REAP_SECONDS))

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
        for number in list(self._told):
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
        return process.converse()
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
    found: Any = sys.modules.get(module or "")
    for part in (path or "").split("."):
        found = getattr(found, part, None)
    if found is None or body_of(found) is not body_of(agent):
        raise InvalidArgument(
            f"{agent!r} cannot be found by its name in an agent process: use a function at the top level of a module"
        )
    return f"{module}:{path}"

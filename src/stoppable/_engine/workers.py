"""Worker processes as participants: an agent in a process of its own, which can always be ended."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from stoppable._core import clock, context
from stoppable._core.boundary import boundary
from stoppable._core.ids import new_id
from stoppable._core.partial import Partial
from stoppable._core.port import Participant, RemoteParticipant
from stoppable._core.run import Run
from stoppable._core.state import Fate, Rung, Status
from stoppable._core.stop import Stop
from stoppable._engine import control, inherited
from stoppable._engine.agents import body_of
from stoppable._engine.processes.orphans import cookie
from stoppable._engine.processes.table import Members, environment
from stoppable._engine.wire import (
    Acknowledged,
    Ended,
    Entered,
    Event,
    Item,
    Left,
    Line,
    Message,
    Start,
    StopRequest,
    Told,
    pack,
)
from stoppable.errors import InvalidArgument, StoppableError

Put: TypeAlias = Callable[[Any], object]

_EXIT_SECONDS = 1.0
_REAP_SECONDS = 5.0

live: set[Worker] = set()
"""The workers of which something may be alive."""
os.register_at_fork(after_in_child=live.clear)  # they are the parent's


class WorkerDied(StoppableError):
    """The worker process ended before its agent did."""

    def __init__(self, run_id: str, returncode: int) -> None:
        super().__init__(run_id, returncode)
        self.run_id = run_id
        self.returncode = returncode

    def __str__(self) -> str:
        how = f"by {signal.Signals(-self.returncode).name}" if self.returncode < 0 else f"with code {self.returncode}"
        return f"the worker process of run {self.run_id} ended {how} before its agent returned"


class Worker(RemoteParticipant):
    """A process that executes the body of a run. It climbs its own ladder; from here it is told, and killed."""

    __slots__ = ("_boundaries", "_has_ended", "_line", "_members", "_next", "_process", "_put", "_run", "_told")

    def __init__(self, run: Run, request: Start, put: Put | None = None) -> None:
        ours, theirs = socket.socketpair()
        group = new_id()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-m", "stoppable._engine.worker", str(theirs.fileno())],
                    pass_fds=[theirs.fileno(), *inherited.descriptors()],
                    start_new_session=True,
                    env={**environment(None, run.id, group, cookie()), "PYTHONPATH": _search_path(request)},
                )
            except BaseException:
                ours.close()
                raise
        self._run = run
        self._put = put
        self._line = Line(ours)
        self._members = Members(group, self._process.pid)
        self._boundaries: dict[int, boundary] = {}
        self._told: dict[int, Stop] = {}
        self._next = 0
        self._has_ended = False
        live.add(self)
        with contextlib.suppress(OSError):  # it died at once: receive() will say so
            self._line.send(request)

    # As a participant of the run

    def tell(self, stop: Stop) -> None:
        """Pass a stop on, from the control thread: a signal handler must not wait for a socket."""
        self._next += 1
        self._told[self._next] = stop
        request = StopRequest(self._next, stop.mode, stop.reason, stop.grace)
        control.get().call_at(clock.now(), lambda: self._send(request))

    def _send(self, request: StopRequest) -> None:
        with contextlib.suppress(OSError):  # it has gone, or is about to
            self._line.send(request)

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, Run]) -> None:
        """Kill; before that the worker climbs by itself."""
        if rung is Rung.KILL:
            for worker in targets:
                assert isinstance(worker, cls)
                worker._kill()

    def _kill(self) -> None:
        for pid in self._members.pids():
            self._members.signal(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGKILL)  # where there is no /proc

    def alive(self) -> bool:
        """Return whether any process of it is alive."""
        return self._process.poll() is None or bool(self._members.pids())

    def describe(self) -> str:
        """Name the process."""
        return f"worker process {self._process.pid}"

    # The conversation, on the thread that stands for the run here

    def converse(self) -> Any:
        """Mirror what the worker tells until it has ended; return its value or raise as its body did."""
        while True:
            match self._line.receive():
                case None:
                    return self._died()
                case Ended() as ended:
                    return self._ended(ended)
                case Acknowledged(number):
                    self._told.pop(number).acknowledge()
                case message:
                    self._mirror(message)

    def _mirror(self, message: Message) -> None:
        run = self._run
        match message:
            case Entered(key, kind, name, after_stop):
                self._entered(key, kind, name, after_stop=after_stop)
            case Left(key, fate):
                self._left(key, fate)
            case Told(value, appended):
                self._partial(value, appended=appended)
            case Event(kind, data) if run._sink is not None:
                run._sink.event(run, kind, data)
            case Item(value) if self._put is not None:
                self._put(value)
            case _:
                pass  # nobody keeps a record

    def _left(self, key: int, fate: Fate | None) -> None:
        run, left = self._run, self._boundaries.pop(key)
        run._withdraw(left)
        if fate is not None:
            left._fate = fate
        if run._sink is not None:
            run._sink.left(run, left)

    def _entered(self, key: int, kind: str, name: str | None, *, after_stop: bool) -> None:
        run = self._run
        entered = self._boundaries[key] = boundary(kind, name)
        entered.holder = self
        run._admit(entered)
        for stop in run._stops():
            if after_stop:
                stop.after.append((run, entered.label))
            else:
                stop.in_flight.append((run, entered))  # its news crossed the stop's
        if run._budget is not None:
            run._budget.spend(kind)
        if run._sink is not None:
            run._sink.entered(run, entered)

    def _partial(self, value: object, *, appended: bool) -> None:
        run = self._run
        if not appended or run._partial is None:
            run._partial = Partial(None if appended else value)
        if appended:
            run._partial.append(value)
        if run._sink is not None:
            run._sink.partial(run, value, appended=appended)

    def _ended(self, ended: Ended) -> Any:
        run, outcome = self._run, ended.outcome
        self._has_ended = True
        if outcome.status in {Status.STOPPED, Status.LOST} and run._stop is None:
            run.stop(reason=outcome.reason)  # it stopped itself
        if run._stop is not None:
            run._stop.reported += [(run, node) for node in ended.nodes]
        if ended.delivered:
            run._deliver(raised=True)
            # What hangs in the worker is ended with it; whether its clean-up ran is known only there.
            run._cut = run._cut or not outcome.clean
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def _died(self) -> Any:
        returncode = self._process.wait(_REAP_SECONDS)
        if self._run._stop is not None:
            self._run._cut = True
            self._run._raise_stopped()
        raise WorkerDied(self._run.id, returncode)

    def end(self) -> None:
        """Leave nothing of it behind, and say that its gate is closed for good."""
        if self._has_ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_SECONDS)  # to flush its output
        self._line.close()
        deadline = clock.now() + _REAP_SECONDS
        while self.alive() and clock.now() < deadline:
            self._kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
        for stop in self._told.values():
            stop.acknowledge()
        self._told.clear()


def _search_path(request: Start) -> str:
    return os.pathsep.join(filter(None, request.path))


def perform_in_worker(request: Callable[[Run], Start], put: Put | None) -> Any:
    """Be the body of a run: start a worker, listen to it, hand its items over, and leave nothing of it behind."""
    run = context.current_run()
    assert run is not None, "the body of a run"
    worker = Worker(run, request(run), put)
    run._admit(worker)
    try:
        for stop in run._stops():
            stop.expect(1)
            worker.tell(stop)  # came between the start and the admission
        return worker.converse()
    finally:
        worker.end()
        if not worker.alive():
            live.discard(worker)
            run._withdraw(worker)


def as_worker_body(agent: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[Put | None], Any]:
    """Return a body that runs an agent in a worker process; raises a clear error if it cannot be sent there.

    It takes what to do with the items of a generator, which come as fast as the worker makes them.
    """
    kwargs: Mapping[str, Any] = {}
    if isinstance(agent, functools.partial):
        args, kwargs, agent = (*agent.args, *args), agent.keywords, agent.func
    name = _name(agent)

    def request(run: Run) -> Start:
        return Start(
            path=list(sys.path),
            agent=name,
            args=args,
            kwargs=kwargs,
            run_id=run.id,
            name=run.name,
            owner=run.owner,
            labels=dict(run.labels),
            policy=run.policy,
        )

    pack(request(Run("probe", run_id="probe")))  # so that what cannot be sent is an error of the caller's
    return functools.partial(perform_in_worker, request)


def _name(agent: Callable[..., Any]) -> str:
    """Return ``module:qualified.name``, having seen that it leads to the agent."""
    module, path = getattr(agent, "__module__", None), getattr(agent, "__qualname__", None)
    if module == "__main__":
        raise InvalidArgument(
            f"{path} is defined in the script that was started, which a worker process cannot import: "
            "move it to a module of its own"
        )
    found: Any = sys.modules.get(module or "")
    for part in (path or "").split("."):
        found = getattr(found, part, None)
    if found is None or body_of(found) is not body_of(agent):
        raise InvalidArgument(
            f"{agent!r} cannot be found by its name in a worker process: use a function at the top level of a module"
        )
    return f"{module}:{path}"

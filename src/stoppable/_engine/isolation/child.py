"""The agent process: executes one agent for a run of its host process, and dies with the host.

Started by its reaper as ``python -m stoppable._engine.isolation.child FD``, with one end of a socket pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import stoppable._engine  # noqa: F401 - connects the engine to the core
from stoppable._core import clock
from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode, Sink
from stoppable._core.run import Budget
from stoppable._core.run import Left as LeftOfLimit
from stoppable._core.stop import Stop
from stoppable._core.values import Limits, Mode, Outcome, Reason, ReasonKind, Status
from stoppable._engine import control
from stoppable._engine.agent_functions import Kind, body_of, kind_of
from stoppable._engine.agents import as_pump, perform, start
from stoppable._engine.executors import run_in_new_loop
from stoppable._engine.instrumentation.install import instrument
from stoppable._engine.isolation.messages import (
    Acknowledged,
    BoundaryEntered,
    BoundaryLeft,
    ChildStarted,
    Item,
    LimitSpent,
    MessageSocket,
    MetadataReported,
    ModelTextReported,
    PartialReported,
    ProgressReported,
    RunEndReported,
    StartAgent,
    StopMessage,
    StopReported,
    Values,
    pack,
    sendable_error,
)
from stoppable._engine.waits import wait_for_end
from stoppable._json import plain
from stoppable.errors import InvalidArgument

_PLAIN_BYTES = 1_000_000


class _Reporter(Sink):
    """Reports everything that the run and its descendants do to the parent process."""

    def __init__(self, line: MessageSocket, root: RunNode) -> None:
        self._line = line
        self._root = root
        self._runs = {root.id: root}
        self._ending = threading.Lock()  # held while the end of a run is reported
        self._lock = threading.Lock()
        self._known: dict[str, Mode] = {}  # by run id, the hardest stop that the parent knows

    # Requests from the parent

    def stop(self, request: StopMessage) -> bool:
        """Stop a run here, and return whether it is blind; a run that has ended is no longer known."""
        run = self._runs.get(request.run_id)
        if run is None:
            return False
        with self._lock:
            self._is_news(run, request.mode)
        return run.stop(request.mode, request.reason, grace=request.grace).blind

    def _is_news(self, run: RunNode, mode: Mode) -> bool:
        known = self._known.get(run.id)
        is_news = known is None or known < mode
        if is_news:
            self._known[run.id] = mode
        return is_news

    # Reports about runs

    def began(self, run: RunNode) -> None:
        """Report a child run."""
        if run is not self._root:
            self._runs[run.id] = run
            self._tell_birth(run, has_begun=True)

    def _tell_birth(self, run: RunNode, *, has_begun: bool) -> None:
        assert run.parent is not None, "a child"
        self._line.send(
            ChildStarted(
                run_id=run.id,
                parent_id=run.parent.id,
                name=run.name,
                owner=run.owner,
                labels=dict(run.labels),
                policy=run.policy,
                has_begun=has_begun,
            )
        )

    def stopping(self, stop: Stop) -> None:
        """Report a stop, from the control thread: a signal handler must not wait for a socket."""
        control.get().call_at(clock.now(), lambda: self._tell_stop(stop))

    def _tell_stop(self, stop: Stop) -> None:
        with self._lock:  # held while sending, so that the end of the run is sent after the stop
            if stop.target.id in self._runs and self._is_news(stop.target, stop.mode):
                self._line.send(StopReported(stop.target.id, stop.mode, stop.reason, stop.grace))

    def ended(self, run: RunNode) -> None:
        """Report how a child ended."""
        if run.id not in self._runs:
            self._tell_birth(run, has_begun=False)
        elif run is not self._root:
            self._tell_child_end(run)

    def _tell_child_end(self, run: RunNode) -> None:
        assert run.outcome is not None, "it has ended"
        with self._ending:
            if run.id in self._runs:
                # As JSON, because no code in the parent awaits it.
                plain = run.outcome._replace(result=_plain(run.outcome.result), partial=None)
                self._tell_end(run, _sendable(plain, self._line.values))
                del self._runs[run.id]

    def close(self, outcome: Outcome[Any]) -> None:
        """Report how the root run ended, as the last message."""
        for run in list(self._runs.values()):
            if run.outcome is not None and run is not self._root:
                self._tell_child_end(run)  # the code that saw its outcome may be faster than the reporting thread
        self._tell_end(self._root, outcome)

    def _tell_end(self, run: RunNode, outcome: Outcome[Any]) -> None:
        for stop in run.stops():
            if stop.target is run:
                self._tell_stop(stop)
        abandoned = tuple(name for stop in run.stops() for lost, name in stop.abandoned if lost is run)
        threads = () if run is self._root else run.library_threads  # those of the root end with this process
        with contextlib.suppress(OSError):  # the parent has gone
            self._line.send(
                RunEndReported(run.id, outcome, run.delivered_at is not None, abandoned, threads, run.unguarded)
            )

    def entered(self, run: RunNode, boundary: Boundary) -> None:
        """Report a boundary."""
        self._line.send(BoundaryEntered(run.id, id(boundary), boundary.kind, boundary.name, run.closed))

    def left(self, run: RunNode, boundary: Boundary) -> None:  # noqa: ARG002 - required by the protocol
        """Report the end of a boundary."""
        self._line.send(BoundaryLeft(id(boundary), boundary.fate))

    def partial(self, run: RunNode, value: object, *, appended: bool) -> None:
        """Report the partial of a run."""
        self._line.send(PartialReported(run.id, value if run is self._root else _plain(value), appended))

    def tell_texts(self) -> None:
        """Report what models have said: this process may be killed before it can report the ends of its runs."""
        for run in list(self._runs.values()):
            if run.first_stop is not None and run.recorded is not None and run.recorded.is_automatic:
                self._line.send(ModelTextReported(run.id, run.recorded.value()))

    def annotated(self, run: RunNode, metadata: dict[str, object]) -> None:
        """Report facts about a run."""
        self._line.send(MetadataReported(run.id, {name: _plain(value) for name, value in metadata.items()}))

    def event(self, run: RunNode, kind: str, data: dict[str, object]) -> None:
        """Report progress."""
        self._line.send(
            ProgressReported(run.id, kind, data if run is self._root else {k: _plain(v) for k, v in data.items()})
        )


def _plain(value: object) -> object:
    form, omitted = plain(value, _PLAIN_BYTES)
    return form if omitted is None else {"omitted": omitted}


def main(descriptor: int) -> None:
    """Execute the agent, report how it ended, and exit without waiting for threads that it left behind."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)  # processes that the agent starts must not inherit it
    line = MessageSocket(connection)
    message = line.receive()
    if isinstance(message, StartAgent):
        sys.path[:] = message.path
        line.values = message.values
        instrument()  # before the agent is imported, which may undo it
        run = _make_run(message)
        run.budget = _Allowance(run, message.left, line) if message.left else None
        run.sink = reporter = _Reporter(line, run)
        threading.Thread(target=_listen, args=(line, reporter), name="stoppable-listen", daemon=True).start()
        reporter.close(_sendable(_perform(run, message, line), line.values))
        control.wait_for_hooks()  # an exit of this kind does not
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _make_run(message: StartAgent) -> RunNode:
    return RunNode(
        message.name,
        run_id=message.run_id,
        owner=message.owner,
        labels=message.labels,
        policy=message.policy,
    )


class _Allowance(Budget):
    """What is left of the limits of the outer runs; the parent counts too, and knows which run has which limit."""

    __slots__ = ("_line", "_of")

    def __init__(self, run: RunNode, left: Mapping[str, LeftOfLimit], line: MessageSocket) -> None:
        super().__init__(run, Limits(boundaries={kind: count for kind, (count, _) in left.items()}), None)
        self._line = line
        self._of = {kind: limit for kind, (_, limit) in left.items()}

    def _exceeded(self, kind: str, limit: int) -> None:
        self._line.send(LimitSpent(self._run.id, kind))
        super()._exceeded(kind, self._of.get(kind, limit))


def _listen(line: MessageSocket, reporter: _Reporter) -> None:
    """Carry out stops; if the host is gone, die, and the reaper kills every process that this one started."""
    while True:
        match line.receive():
            case None:
                os.kill(os.getpid(), signal.SIGKILL)
            case StopMessage() as request:
                is_blind = reporter.stop(request)
                line.send(Acknowledged(request.number, is_blind))
                reporter.tell_texts()
            case _:
                pass


def _perform(run: RunNode, message: StartAgent, line: MessageSocket) -> Outcome[Any]:
    try:
        body = as_pump(load(message.agent), lambda item: line.send(Item(item)))
    except Exception as error:
        return Outcome(status=Status.FAILED, error=error)

    cut: list[bool] = []  # not empty if the exit of this process cuts off the clean-up of tasks

    async def execute() -> None:
        await start(run, functools.partial(body, **message.kwargs), message.args).outcome()

    try:
        if kind_of(body) is Kind.BLOCKING:
            perform(run, body, message.args, {**message.kwargs})
        else:
            run_in_new_loop(execute, lambda: cut.append(True))
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit) as outsider:
        # It has passed the edge of the run, which stopped the run; wait for the outcome, and report it.
        if run.body_end is None:  # it bypassed the edge: it was raised in the event loop between two steps of the body
            reason = f"{type(outsider).__name__} from outside"
            run.stop(reason=Reason.of(reason, kind=ReasonKind.SHUTDOWN))
    outcome = wait_for_end(run)
    return outcome._replace(clean=False) if cut else outcome


def load(agent: str) -> Callable[..., Any]:
    """Return the body of the agent that ``module:qualified.name`` names."""
    module, _, path = agent.partition(":")
    target: Any = importlib.import_module(module)
    for name in path.split("."):
        target = getattr(target, name, None)
        if target is None:
            raise InvalidArgument(f"there is no {path!r} in module {module!r}: an agent is named module:function")
    return body_of(target)


def _sendable(outcome: Outcome[Any], values: Values) -> Outcome[Any]:
    """Return an outcome that can be sent; values that cannot are replaced by an error that says so."""
    if values is Values.PICKLE and outcome.error is not None:
        outcome = outcome._replace(error=sendable_error(outcome.error))
    try:
        pack(RunEndReported("", outcome, delivered=False), values)
    except InvalidArgument as refusal:
        status = Status.FAILED if outcome.status is Status.COMPLETED else outcome.status
        return outcome._replace(status=status, result=None, partial=None, error=refusal)
    return outcome


if __name__ == "__main__":
    main(int(sys.argv[1]))

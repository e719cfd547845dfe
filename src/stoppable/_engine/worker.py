"""The worker process: executes one agent for a run of its parent, and dies with it.

Started as ``python -m stoppable._engine.worker FD``, in a session of its own, with one end of a socket pair.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import stoppable._engine  # noqa: F401 - puts the engine under the core
from stoppable._core.boundary import boundary
from stoppable._core.outcome import Outcome
from stoppable._core.run import Run
from stoppable._core.sink import Sink
from stoppable._core.state import Status
from stoppable._engine.agents import Kind, block, body_of, kind_of, pumped, start
from stoppable._engine.loops import run_in_new_loop
from stoppable._engine.open_run import limit_time
from stoppable._engine.processes.table import GROUPS, Members
from stoppable._engine.wire import Acknowledged, Ended, Entered, Event, Item, Left, Line, Start, StopRequest, Told, pack
from stoppable.errors import InvalidArgument


class _Reporter(Sink):
    """Sends what the run tells to the parent process."""

    def __init__(self, line: Line, root: Run) -> None:
        self._line = line
        self._root = root

    def entered(self, run: Run, boundary: boundary) -> None:
        self._line.send(Entered(id(boundary), boundary.kind, boundary.name, run._closed))

    def left(self, run: Run, boundary: boundary) -> None:  # noqa: ARG002 - the name of the protocol
        self._line.send(Left(id(boundary), boundary.fate))

    def partial(self, run: Run, value: object, *, appended: bool) -> None:
        if run is self._root:
            self._line.send(Told(value, appended))

    def event(self, run: Run, kind: str, data: dict[str, object]) -> None:  # noqa: ARG002 - the name of the protocol
        self._line.send(Event(kind, data))


def main(descriptor: int) -> None:
    """Execute what the parent asks for, say how it ended, and exit without waiting for leftovers."""
    line = Line(socket.socket(fileno=descriptor))
    message = line.receive()
    if isinstance(message, Start):
        sys.path[:] = message.path
        run = _make_run(message, line)
        threading.Thread(target=_listen, args=(line, run), name="stoppable-listen", daemon=True).start()
        _say(line, _perform(run, message, line), run)
    sys.stdout.flush()
    sys.stderr.flush()
    with _leaving:
        os._exit(0)


def _make_run(message: Start, line: Line) -> Run:
    run = Run(
        message.name,
        run_id=message.run_id,
        owner=message.owner,
        labels=message.labels,
        limits=message.limits,
        policy=message.policy,
    )
    run._sink = _Reporter(line, run)
    limit_time(run, message.limits)
    return run


def _listen(line: Line, run: Run) -> None:
    """Pass stops on; when the parent has gone, die and take every process of the session along."""
    while True:
        match line.receive():
            case None:
                _die()
            case StopRequest(number, mode, reason, grace):
                run.stop(mode, reason, grace=grace)
                line.send(Acknowledged(number))
            case _:
                pass


_leaving = threading.Lock()


def _die() -> None:
    _leaving.acquire()  # for good: the agent may end because its processes die, and must not exit before all of them do
    group = os.environ.get(GROUPS, "").rpartition(":")[2]
    members = Members(group, os.getsid(0))
    for pid in members.pids():
        if pid != os.getpid():
            members.signal(pid, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def _perform(run: Run, message: Start, line: Line) -> Outcome[Any]:
    try:
        body = pumped(load(message.agent), lambda item: line.send(Item(item)))
    except Exception as error:
        return Outcome(status=Status.FAILED, error=error)

    async def execute() -> None:
        await start(run, functools.partial(body, **message.kwargs), message.args).outcome()

    if kind_of(body) is Kind.BLOCKING:
        block(run, body, message.args, {**message.kwargs})
    else:
        run_in_new_loop(execute)
    assert run.outcome is not None, "the edge has closed"
    return run.outcome


def load(agent: str) -> Callable[..., Any]:
    """Return the body of the agent that ``module:qualified.name`` names."""
    module, _, path = agent.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise InvalidArgument(f"there is no {path!r} in module {module!r}: an agent is named module:function")
    return body_of(found)


def _say(line: Line, outcome: Outcome[Any], run: Run) -> None:
    """Tell how the run ended, and what became of the runs and boundaries in it."""
    receipt = run.receipt
    nodes = () if receipt is None else tuple(node for node in receipt.nodes if node.run_id != run.id)
    with contextlib.suppress(OSError):  # the parent has gone
        line.send(Ended(_sendable(outcome), run._delivered_at is not None, nodes))


def _sendable(outcome: Outcome[Any]) -> Outcome[Any]:
    """Return an outcome that can be sent: what cannot be is replaced by an error that says so."""
    error = outcome.error
    if error is not None:
        trace = "".join(traceback.format_exception(error))
        if _refusal(Outcome(status=outcome.status, error=error)) is not None:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(f"in the worker process:\n{trace}")
        outcome = outcome._replace(error=error)
    refusal = _refusal(outcome)
    if refusal is None:
        return outcome
    status = Status.FAILED if outcome.status is Status.COMPLETED else outcome.status
    return outcome._replace(status=status, result=None, partial=None, error=refusal)


def _refusal(outcome: Outcome[Any]) -> InvalidArgument | None:
    try:
        pack(Ended(outcome, delivered=False))
    except InvalidArgument as refusal:
        return refusal
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))

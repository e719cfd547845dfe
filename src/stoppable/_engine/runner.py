"""The blocking runner for scripts, with Ctrl-C as its stop button."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple, overload

from stoppable._core import context
from stoppable._core.node import RunNode
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.state import PRESSES, Mode
from stoppable._engine import ctrl_c
from stoppable._engine.agent_functions import body_of
from stoppable._engine.agents import root_run, start
from stoppable._engine.blocking import call
from stoppable._engine.loops import run_in_new_loop
from stoppable.errors import RunLost, RunStopped, StoppableError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CTRL_C = "Ctrl-C"


@overload
def run(agent: Callable[[*Ts], AsyncIterator[Any]], *args: *Ts) -> None: ...
@overload
def run(agent: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T: ...
@overload
def run(agent: Callable[[*Ts], Generator[Any, Any, T]], *args: *Ts) -> T: ...  # type: ignore[overload-overlap]
@overload
def run(agent: Callable[[*Ts], Iterator[Any]], *args: *Ts) -> None: ...
@overload
def run(agent: Callable[[*Ts], T], *args: *Ts) -> T: ...
def run(agent: Callable[..., Any], *args: Any) -> Any:  # type: ignore[misc]  # mypy: *args: *Ts is never *args: Any
    """Run an agent and return its value; for scripts.

    Ctrl-C once is a graceful stop, twice an immediate one. The third press is a kill and raises KeyboardInterrupt at
    once, whatever the agent does; if the agent swallows even that, a fourth ends the process. Raises RunStopped,
    RunFailed or RunLost. If Ctrl-C stopped the run and the script does not catch the error, it ends with one line and
    exit code 130. Inside a run it is ``sync.call``: the agent is a child run.
    """
    if asyncio._get_running_loop() is not None:
        raise StoppableError("run() blocks and is for scripts: inside async code use `await stoppable.call(…)`")
    if context.current_node() is not None:
        return call(agent, *args)
    body = body_of(agent)
    root = root_run(agent)

    with _stop_button(root) as listen:

        async def main() -> Any:
            listen(asyncio.get_running_loop())
            return await start(root, body, args).result()

        try:
            return run_in_new_loop(main)
        except (RunStopped, RunLost) as error:
            if (reason := root.token.reason) is not None and reason.message == _CTRL_C:
                ctrl_c.with_one_line(error, root.name)
            raise


Listen = Callable[[asyncio.AbstractEventLoop], object]


@contextmanager
def _stop_button(root: RunNode) -> Iterator[Listen]:
    """Make each Ctrl-C a harder stop of a run while the block runs; yield a function that lets a press wake a loop.

    A signal that arrives just before the loop begins to wait, or on another thread, does not end that wait. The wake-up
    file descriptor does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda _: None  # only the main thread gets signals
        return
    presses = iter(PRESSES)

    def press(_signum: int, _frame: FrameType | None) -> None:
        mode = next(presses)
        root.stop(mode, Reason.of(_CTRL_C, kind=ReasonKind.USER))
        if mode is Mode.KILL:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # in case the agent swallows even this one
            raise ctrl_c.with_one_line(KeyboardInterrupt(), root.name, killed=True)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)  # noqa: FBT003
        theirs.setblocking(False)  # noqa: FBT003
        previous = signal.signal(signal.SIGINT, press)
        waking = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield lambda loop: loop.add_reader(ours, _drain, ours)
        finally:
            signal.set_wakeup_fd(waking)
            signal.signal(signal.SIGINT, previous)


def _drain(woken: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        woken.recv(4096)

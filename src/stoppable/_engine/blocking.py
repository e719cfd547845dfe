"""The blocking interface: runs on threads, and ``run()`` for scripts, with Ctrl-C as its stop button."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar, TypeVarTuple, cast, overload

from stoppable._core import clock, context
from stoppable._core.boundary import check
from stoppable._core.hooks import Callback, Moment
from stoppable._core.node import RunNode
from stoppable._core.stop import Receipt, write_receipt
from stoppable._core.values import PRESSES, Mode, Outcome, Policy, Reason, ReasonKind, Status
from stoppable._core.values import seconds as checked_seconds
from stoppable._engine import control
from stoppable._engine.agent_functions import Kind, body_of, kind_of, merge_options, with_keywords
from stoppable._engine.agents import channel_for, child_run, feeding, in_thread, perform, root_run, start
from stoppable._engine.bodies import Channel
from stoppable._engine.control import Alarm
from stoppable._engine.edge import raise_ended
from stoppable._engine.executors import run_in_new_loop
from stoppable._engine.handle import BaseHandle, RunHandle, Until, is_body, observe_outcome, stream_of
from stoppable._engine.waits import wait_for_end, wait_within
from stoppable.errors import RunFailed, RunLost, RunStopped, StoppableError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")


class BlockingHandle(BaseHandle, Generic[T_co]):
    """A run that was started with ``sync.spawn``, for blocking code."""

    __slots__ = ("_channel",)

    def __init__(self, run: RunNode, channel: Channel[Any] | None = None) -> None:
        super().__init__(run)
        self._channel = channel

    def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
        *,
        wait: float | None = None,
    ) -> Receipt:
        """Stop the run and its subtree; with ``wait`` it waits up to that many seconds for the end."""
        seconds = None if wait is None else checked_seconds(wait, "wait")
        receipt = self._run.stop(mode, reason, actor, grace)
        if receipt.final or not seconds:
            return receipt
        wait_within(self._run, seconds)
        return write_receipt(self._run, receipt.answer)

    def outcome(self) -> Outcome[T_co]:
        """Wait for the end and return it; never raises because the run was stopped."""
        wait_for_end(self._run)
        return observe_outcome(self._run)

    def result(self) -> T_co:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost."""
        outcome = self.outcome()
        match outcome.status:
            case Status.COMPLETED:
                return cast("T_co", outcome.result)
            case Status.FAILED:
                raise RunFailed(self.id, outcome) from outcome.error
            case _:
                return raise_ended(self._run, context.current.get())

    def receipt(self) -> Receipt | None:
        """Return the receipt of the stops of this run so far, or None if it was not stopped."""
        return self._run.receipt

    def join(self) -> Outcome[T_co]:
        """Wait for the end and return the outcome; if the caller is interrupted, the run is stopped too.

        A KeyboardInterrupt or SystemExit becomes an immediate stop and propagates at once.
        """
        try:
            return self.outcome()
        except (KeyboardInterrupt, SystemExit) as outsider:  # a Ctrl-C, or the handler of another signal
            reason = Reason.of(f"{type(outsider).__name__} from outside", kind=ReasonKind.SHUTDOWN)
            self._run.stop(Mode.IMMEDIATE, reason)
            raise

    def stream(self, *, until: Until = "end") -> Iterator[Any]:
        """Yield the items of a generator agent; ends as ``result()`` does. Leaving early does not stop the run.

        With ``until="body"`` it ends without an error as soon as the generator has ended, even if the run goes on.
        """
        until_body = is_body(until)
        yield from stream_of(self._run, self._channel).read_blocking(until_body=until_body)
        if not until_body:
            self.result()


@overload
def spawn(
    agent: Callable[[*Ts], AsyncIterator[Any]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> BlockingHandle[None]: ...
@overload
def spawn(
    agent: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> BlockingHandle[T]: ...
@overload
def spawn(
    agent: Callable[[*Ts], Generator[Any, Any, T]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> BlockingHandle[T]: ...
@overload
def spawn(
    agent: Callable[[*Ts], Iterator[Any]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> BlockingHandle[None]: ...
@overload
def spawn(
    agent: Callable[[*Ts], T],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> BlockingHandle[T]: ...
def spawn(  # type: ignore[misc]  # as in agents.py
    agent: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    policy: Policy | None = None,
    **kwargs: Any,
) -> BlockingHandle[Any]:
    """Start an agent on a new thread, as a child of the current run or as a new root.

    An async agent gets a new event loop there. The items of a generator come from the handle's ``stream()``.
    """
    agent = with_keywords(agent, args, kwargs)
    body = body_of(agent)
    handle = start_on_thread(child_run(body, merge_options(agent, name, labels, policy)), body, args)
    return BlockingHandle(handle._run, handle._channel)


def start_on_thread(run: RunNode, body: Callable[..., Any], args: tuple[Any, ...]) -> RunHandle[Any]:
    """Start a body as a run on a new thread, with an event loop there if it needs one."""
    channel = channel_for(run, body)
    if channel is not None:
        body = feeding(channel, body)

    async def main() -> None:
        await start(run, body, args).outcome()

    is_blocking = kind_of(body) is Kind.BLOCKING
    call = functools.partial(perform, run, body, args, {}) if is_blocking else functools.partial(run_in_new_loop, main)
    return RunHandle(run, in_thread(run, call), channel)


@overload
def call(
    agent: Callable[[*Ts], AsyncIterator[Any]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> None: ...
@overload
def call(
    agent: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> T: ...
@overload
def call(
    agent: Callable[[*Ts], Generator[Any, Any, T]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> T: ...
@overload
def call(
    agent: Callable[[*Ts], Iterator[Any]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> None: ...
@overload
def call(
    agent: Callable[[*Ts], T],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> T: ...
def call(  # type: ignore[misc]  # as in agents.py
    agent: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    policy: Policy | None = None,
    **kwargs: Any,
) -> Any:
    """Run an agent as a child of the current run and return its value; outside a run a plain call."""
    agent = with_keywords(agent, args, kwargs)
    body = body_of(agent)
    if context.current_node() is None and kind_of(body) is Kind.BLOCKING:
        return body(*args)
    handle = spawn(agent, *args, name=name, labels=labels, policy=policy)
    handle.join()  # no other code has this handle
    return handle.result()


def sleep(seconds: float) -> None:
    """Sleep; a stop of the run ends the sleep at once and raises AgentStopped. Outside a run it is a plain sleep."""
    checked_seconds(seconds, "seconds")
    check()
    alarm = Alarm()
    timer = control.get().call_at(clock.now() + seconds, alarm.ring)
    scope = context.current.get()
    try:
        if isinstance(scope, RunNode):
            with Callback(scope, Moment.STOP, alarm.ring) as hook:
                scope.add_hook(hook)
                _wait(alarm)
        else:
            _wait(alarm)
    finally:
        timer.cancel()
    check()


def _wait(alarm: Alarm) -> None:
    while not alarm.wait():
        pass


E = TypeVar("E", bound=BaseException)

_EXIT_CODE = 130
_LINE = "_stoppable_line"


def with_one_line(error: E, name: str, *, killed: bool = False) -> E:
    """Return an exception that ends the process without a traceback if it is not caught.

    Otherwise it is an ordinary exception. An existing ``excepthook`` still handles all other exceptions.
    """
    if isinstance(error, RunLost):
        line = f"{name} was stopped by Ctrl-C; something of it may still be alive"
    elif killed:
        line = f"{name} was killed by Ctrl-C; its clean-up may not have run"
    else:
        line = f"{name} was stopped by Ctrl-C"
    setattr(error, _LINE, line)
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook()
    return error


class _Hook:
    """An excepthook for uncaught exceptions."""

    def __init__(self) -> None:
        self._others = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        line = getattr(error, _LINE, None)
        if line is None:
            self._others(kind, error, trace)
            return
        print(line, file=sys.stderr)  # noqa: T201 - Python writes a traceback there
        sys.exit(_EXIT_CODE)


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
                with_one_line(error, root.name)
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
            raise with_one_line(KeyboardInterrupt(), root.name, killed=True)

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

"""spawn, call and sleep for blocking code, without an event loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, Generic, TypeVar, TypeVarTuple, cast, overload

from stoppable._core import clock, context
from stoppable._core.boundary import check
from stoppable._core.hooks import Callback, Moment
from stoppable._core.node import RunNode
from stoppable._core.outcome import Outcome
from stoppable._core.policy import Policy
from stoppable._core.policy import seconds as checked_seconds
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.receipt import write
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable._engine import control
from stoppable._engine.agent_functions import Kind, asked, body_of, kind_of, with_keywords
from stoppable._engine.agents import channel_for, child_run, fed, in_thread, perform, start
from stoppable._engine.alarms import Alarm
from stoppable._engine.channel import Channel
from stoppable._engine.edge import raise_ended
from stoppable._engine.handle import Held, RunHandle, Until, is_body, seen, stream_of
from stoppable._engine.loops import run_in_new_loop
from stoppable._engine.waits import wait_for_end, wait_within
from stoppable.errors import RunFailed

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")


class BlockingHandle(Held, Generic[T_co]):
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
        return write(self._run, receipt.answer)

    def outcome(self) -> Outcome[T_co]:
        """Wait for the end and return it; never raises because the run was stopped."""
        wait_for_end(self._run)
        return seen(self._run)

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
    held = start_on_thread(child_run(body, asked(agent, name, labels, policy)), body, args)
    return BlockingHandle(held._run, held._channel)


def start_on_thread(run: RunNode, body: Callable[..., Any], args: tuple[Any, ...]) -> RunHandle[Any]:
    """Start a body as a run on a new thread, with an event loop there if it needs one."""
    channel = channel_for(run, body)
    if channel is not None:
        body = fed(channel, body)

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
    held = spawn(agent, *args, name=name, labels=labels, policy=policy)
    held.join()  # no other code has this handle
    return held.result()


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

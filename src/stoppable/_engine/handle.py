"""Handles of runs."""

from __future__ import annotations

from asyncio import CancelledError, Task, timeout
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from threading import Thread
from typing import Any, Generic, Literal, TypeVar, get_args

from stoppable._core import context
from stoppable._core.node import RunNode
from stoppable._core.run import Run
from stoppable._core.stop import Receipt, write_receipt
from stoppable._core.values import Mode, Outcome, Reason, Status
from stoppable._core.values import seconds as checked_seconds
from stoppable._engine.bodies import Channel
from stoppable._engine.edge import raise_ended
from stoppable._engine.tasks import stop_on_foreign_cancel
from stoppable._engine.waits import await_acknowledgement, await_end
from stoppable.errors import InvalidArgument, RunFailed

T_co = TypeVar("T_co", covariant=True)

Until = Literal["end", "body"]

_COMPLETED = Status.COMPLETED
_BY_STOP = (Status.STOPPED, Status.LOST)
_ACKNOWLEDGE_SECONDS = 1.0


class BaseHandle:
    """The common part of async and blocking handles."""

    __slots__ = ("_run",)

    def __init__(self, run: RunNode) -> None:
        self._run: RunNode = run

    @property
    def run(self) -> Run:
        """The run itself."""
        return self._run

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.id

    @property
    def status(self) -> Status:
        """The current status."""
        return self._run.status

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._run.name!r} {self.status}>"


class RunHandle(BaseHandle, Generic[T_co]):
    """A run that was started with ``spawn``: stop it or wait for it, from any task."""

    __slots__ = ("_carrier", "_channel")

    def __init__(self, run: RunNode, carrier: Task[Any] | Thread, channel: Channel[Any] | None = None) -> None:
        self._run = run
        self._carrier = carrier  # asyncio itself keeps only a weak reference to a task
        self._channel = channel

    async def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
        *,
        wait: float | None = None,
    ) -> Receipt:
        """Stop the run and its subtree; with ``wait`` it waits up to that many seconds for the end.

        When it returns, every gate is closed. It waits at most one second for gates in another process; after that
        ``acknowledged_at`` is None.
        """
        seconds = None if wait is None else checked_seconds(wait, "wait")
        receipt = self._run.stop(mode, reason, actor, grace)
        if receipt.final or (receipt.acknowledged_at is not None and not seconds):
            return receipt
        if seconds:
            with suppress(TimeoutError):
                async with timeout(seconds):
                    await await_end(self._run)
        else:
            await await_acknowledgement(self._run, _ACKNOWLEDGE_SECONDS)
        return write_receipt(self._run, receipt.answer)

    # These return the inner coroutine, instead of wrapping it in another one.

    def outcome(self) -> Coroutine[Any, Any, Outcome[T_co]]:
        """Wait for the end and return it; never raises because the run was stopped."""
        return await_end(self._run, observe_outcome)

    def result(self) -> Coroutine[Any, Any, T_co]:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost.

        Inside the stopped subtree it raises AgentStopped.
        """
        return await_end(self._run, _value_of)

    async def receipt(self) -> Receipt | None:
        """Return the receipt of the stops of this run so far, or None if it was not stopped."""
        return self._run.receipt

    async def join(self) -> Outcome[T_co]:
        """Wait for the end and return the outcome; if the caller is cancelled, the run is stopped too.

        For a caller that is the only consumer of the run, such as a wrapper of a framework. The cancel becomes an
        immediate stop and propagates at once; the ladder ends the run (G9).
        """
        try:
            return await self.outcome()
        except CancelledError:
            stop_on_foreign_cancel(self._run)
            raise

    async def stream(self, *, until: Until = "end") -> AsyncIterator[Any]:
        """Yield the items of a generator agent; ends as ``result()`` does. Leaving early does not stop the run.

        With ``until="body"`` it ends without an error as soon as the generator has ended, even if the run goes on.
        """
        until_body = is_body(until)
        async for item in stream_of(self._run, self._channel).read(until_body=until_body):
            yield item
        if not until_body:
            await self.result()


def observe_outcome(run: RunNode) -> Outcome[Any]:
    """Return how a run ended; if the caller's own stop ended it, that stop counts as delivered."""
    outcome = run.outcome
    assert outcome is not None, "it has ended"
    here = context.current_node()
    if (
        here is not None
        and here.first_stop is not None
        and run.first_stop in here.stops()
        and outcome.status in _BY_STOP
    ):
        here.deliver(raised=True)
    return outcome


def _value_of(run: RunNode) -> Any:
    outcome = run.outcome
    assert outcome is not None, "it has ended"
    if outcome.status is _COMPLETED:
        return outcome.result
    if outcome.status is Status.FAILED:
        raise RunFailed(run.id, outcome) from outcome.error
    return raise_ended(run, context.current.get())


def is_body(until: str) -> bool:
    """Return whether a stream ends with the body of its run."""
    if until not in get_args(Until):
        raise InvalidArgument(f"until is {until!r:.40}: use {' or '.join(get_args(Until))}")
    return until == "body"


def stream_of(run: RunNode, channel: Channel[Any] | None) -> Channel[Any]:
    """Return the channel of a generator agent, or raise a clear error for other agents."""
    if channel is None:
        raise InvalidArgument(f"{run.name} is not a generator agent: use result()")
    return channel

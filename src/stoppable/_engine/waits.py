"""Waits for the end of a run, and waits that a stop cuts short."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stoppable._core import context, participants
from stoppable._core.boundary import check
from stoppable._core.hooks import Hook, Moment
from stoppable._core.node import RunNode
from stoppable._core.outcome import Outcome
from stoppable._core.policy import seconds as checked_seconds
from stoppable._engine import control, tasks
from stoppable._engine.alarms import Alarm
from stoppable.errors import AgentStopped

T = TypeVar("T")


def _outcome_of(run: RunNode) -> Outcome[Any]:
    """Return how a run ended."""
    assert run.outcome is not None, "it has ended"
    return run.outcome


# Without ``answer``, T is Outcome, which mypy cannot infer from a default.
async def ended(run: RunNode, answer: Callable[[RunNode], T] = _outcome_of) -> T:  # type: ignore[assignment]
    """Wait for the terminal status of a run, in any loop, and return what ``answer`` makes of the run."""
    if run.outcome is None:
        future: asyncio.Future[None] = asyncio.Future(loop=asyncio.get_running_loop())
        thread = tasks.here.thread

        def wake() -> None:
            if not thread._is_owned():
                _wake(future)
            elif not future.done():
                try:  # noqa: SIM105 - contextlib.suppress would cost as much as the rest
                    future.set_result(None)
                except RuntimeError:
                    pass  # the loop was closed, and its tasks with it

        run.when_ended(wake)
        try:
            await future
        except BaseException:
            run.forget(wake)
            raise
    return answer(run)


async def acknowledged(run: RunNode, seconds: float) -> None:
    """Wait until every gate that the stops of a run must close is closed, or the time is over."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            for stop in run.stops():
                future: asyncio.Future[None] = loop.create_future()
                stop.when_acknowledged(functools.partial(_wake, future))
                await future
    except TimeoutError:
        pass  # a process does not answer: KILL ends it


def wait_for_end(run: RunNode) -> Outcome[Any]:
    """Wait for the terminal status of a run, on a thread; in every mode but cooperative the ladder bounds it."""
    alarm = Alarm()
    run.when_ended(alarm.ring)
    while (outcome := run.outcome) is None:
        alarm.wait()
    return outcome


def wait_within(run: RunNode, seconds: float) -> None:
    """Wait for the terminal status of a run, on a thread, but not longer than that."""
    alarm = Alarm()
    run.when_ended(alarm.ring)
    if not alarm.wait(min(seconds, threading.TIMEOUT_MAX)):
        run.forget(alarm.ring)


class _Wake(Hook):
    """Resolves a future that a task waits for."""

    __slots__ = ("_future",)

    def __init__(self, run: RunNode, future: asyncio.Future[None]) -> None:
        self.run = run
        self.moment = Moment.STOP
        self._future = future

    def call(self) -> None:
        """Wake it."""
        _wake(self._future)

    @classmethod
    def call_all(cls, hooks: Sequence[Hook]) -> None:
        """Wake the waiting tasks, with one call for each loop."""
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for hook in hooks:
            future: asyncio.Future[None] = hook._future  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
            loop = future.get_loop()
            if loop in loops:
                loops[loop].append(future)
            else:
                loops[loop] = [future]
        for loop, futures in loops.items():
            _wake_all(loop, futures)


async def until(future: asyncio.Future[None]) -> None:
    """Wait for a future of the running loop; a stop of the current run ends the wait and raises AgentStopped."""
    check()
    scope = context.current.get()
    if not isinstance(scope, RunNode):
        await future  # outside any run, or in a shield: nothing cuts it short
        return
    hook = _Wake(scope, future)
    scope.add_hook(hook)
    try:
        await future
    finally:
        scope.withdraw(hook)
    if scope.closed:
        scope.raise_stopped()


async def sleep(seconds: float) -> None:
    """Sleep; a stop of the run ends the sleep at once and raises AgentStopped. Outside a run it is a plain sleep."""
    try:
        await _sleep(checked_seconds(seconds, "seconds"))
    except AgentStopped:
        await participants.hold_back()
        raise


async def _sleep(seconds: float) -> None:
    if seconds == 0:
        check()
        await asyncio.sleep(0)
        check()
        return
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    timer = control.get().call_later_in(loop, seconds, _resolve, future)
    try:
        await until(future)
    finally:
        timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    _wake_all(future.get_loop(), [future])


def _wake_all(loop: asyncio.AbstractEventLoop, futures: Sequence[asyncio.Future[None]]) -> None:
    if asyncio._get_running_loop() is loop and tasks.current_task(loop) is not None:
        _resolve_all(futures)
        return
    # Through the self-pipe, also on the loop's thread: a signal handler may stop a run while the loop is in select().
    with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
        loop.call_soon_threadsafe(_resolve_all, futures)


def _resolve_all(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

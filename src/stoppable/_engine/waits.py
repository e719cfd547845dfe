"""Waits for the end of a run or of calls in flight, and waits that a stop cuts short."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from asyncio import Task
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stoppable._core import clock, context, participants
from stoppable._core.boundary import Boundary, check
from stoppable._core.hooks import Callback, Hook, Moment
from stoppable._core.node import RunNode
from stoppable._core.values import Mode, Outcome
from stoppable._core.values import seconds as checked_seconds
from stoppable._engine import control, tasks
from stoppable._engine.control import Alarm
from stoppable._engine.tasks import TaskParticipant
from stoppable._engine.threads import ThreadParticipant
from stoppable.errors import AgentStopped

T = TypeVar("T")


def _outcome_of(run: RunNode) -> Outcome[Any]:
    """Return how a run ended."""
    assert run.outcome is not None, "it has ended"
    return run.outcome


# Without ``answer``, T is Outcome, which mypy cannot infer from a default.
async def await_end(run: RunNode, answer: Callable[[RunNode], T] = _outcome_of) -> T:  # type: ignore[assignment]
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


async def await_acknowledgement(run: RunNode, seconds: float) -> None:
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


def wait_for_stop(run: RunNode, seconds: float) -> None:
    """Wait for a stop of a run, on a thread, but not longer than that."""
    alarm = Alarm()
    with Callback(run, Moment.STOP, alarm.ring) as hook:
        run.add_hook(hook)
        alarm.wait(seconds)


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
        await participants.engine.hold_back()
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


_LOOK_SECONDS = 0.01

_waiting: set[TaskParticipant] = set()
"""The branches that noticed a stop and wait for others."""
_looks: dict[tuple[asyncio.AbstractEventLoop, RunNode], asyncio.Future[bool]] = {}
"""Futures that say whether the wait is over; one branch checks for all, because there may be thousands."""


async def drained() -> None:
    """Wait until no other branch of the current run is inside a boundary, while the grace of its stop lasts.

    Use it in parallel branches: ``except AgentStopped: await drained(); raise``. A task group cancels the siblings of a
    branch that raises, including calls that were paid for (N12); an awaited boundary waits automatically, but
    ``check()`` and a plain ``with boundary(…)`` cannot. Boundaries around the calling branch do not count. Returns at
    once if the run was not stopped, and at the INTERRUPT rung at the latest, so it never prolongs a stop (G6).
    """
    run, me = context.current_node(), tasks.current()
    if run is not None and me is not None:
        await _drain(run, me)


async def hold_back() -> None:
    """Wait as ``drained()`` does, in a branch that noticed the stop while it awaited a function of stoppable.

    The run's main task does not wait: its clean-up may be needed to end what still runs, and has the grace for that.
    """
    run, me = context.current_node(), tasks.current()
    if run is not None and me is not None and me is not run.main and not me.task.cancelling():
        await _drain(run, me)


async def _drain(run: RunNode, me: TaskParticipant) -> None:
    if run.first_stop is None:
        return
    until = run.first_stop.requested_at + run.policy.grace  # a cooperative stop has no rung that would end it
    _waiting.add(me)
    try:
        while not await _is_over(run, until):
            pass  # the branch that checked was cancelled
    finally:
        _waiting.discard(me)


async def _is_over(run: RunNode, until: float) -> bool:
    """Wait for the calls of other branches and return True, or False if the branch that checks for all gave up."""
    loop = asyncio.get_running_loop()
    look = _looks.get((loop, run))
    if look is not None:
        await asyncio.wait([look])  # a cancel of this branch must not cancel the check
        return look.result()
    look = _looks[loop, run] = loop.create_future()
    try:
        # Polls: leaving a boundary does not wake this, to keep boundaries cheap.
        while _may_wait(run) and clock.now() < until and _is_another_inside(run):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        look.set_result(True)
    finally:
        if look.done():
            loop.call_soon(_looks.pop, (loop, run))  # branches that notice the stop in this turn share it
        else:
            del _looks[loop, run]
            look.set_result(False)
    return True


def _may_wait(run: RunNode) -> bool:
    return run.rung is None and all(stop.mode <= Mode.GRACEFUL for stop in run.stops())


def _is_another_inside(run: RunNode) -> bool:
    """Return whether a call is in flight, in a run or below it, apart from boundaries around waiting branches."""
    around = _around_those_who_wait()
    nodes = [run]
    for node in nodes:
        nodes += node.list_children()
        if any(not entry.is_idle and _is_call(entry.holder, around) for entry in node.members_of(Boundary)):
            return True
    return False


def _is_call(holder: object, around: set[Task[Any]]) -> bool:
    """Return whether a boundary is a call that an unwinding branch could cut off.

    A separate thread or process is not: nothing unwinds it, and it may wait for the clean-up.
    """
    if isinstance(holder, ThreadParticipant):
        return holder._thread is not threading.current_thread()
    return isinstance(holder, TaskParticipant) and holder.task not in around


def _around_those_who_wait() -> set[Task[Any]]:
    """Return the waiting tasks and the tasks that started them, whose boundaries wait too."""
    around: set[Task[Any]] = set()
    for waiter in list(_waiting):
        participant: TaskParticipant | None = waiter
        while participant is not None and participant.task not in around:
            around.add(participant.task)
            participant = participant.started_by()
    return around

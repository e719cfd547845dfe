"""Lets the calls in flight of parallel branches finish before one of them unwinds the others."""

from __future__ import annotations

import asyncio
import threading
from asyncio import Task
from typing import Any

from stoppable._core import clock, context
from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode
from stoppable._core.state import Mode
from stoppable._engine import tasks
from stoppable._engine.tasks import TaskParticipant
from stoppable._engine.threads import ThreadParticipant

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
        if any(not entered.is_idle and _is_call(entered.holder, around) for entered in node.members_of(Boundary)):
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
    found: set[Task[Any]] = set()
    for waiter in list(_waiting):
        participant: TaskParticipant | None = waiter
        while participant is not None and participant.task not in found:
            found.add(participant.task)
            participant = participant.started_by()
    return found

"""Lets the calls in flight of parallel branches finish before one of them unwinds the others."""

from __future__ import annotations

import asyncio
import threading
from asyncio import Task
from typing import Any

from stoppable._core import clock, context
from stoppable._core.boundary import Boundary
from stoppable._core.run import Run
from stoppable._core.state import Mode
from stoppable._engine import tasks
from stoppable._engine.tasks import TaskParticipant
from stoppable._engine.threads import ThreadParticipant

_LOOK_SECONDS = 0.01

_waiting: set[TaskParticipant] = set()
"""The branches that met a stop and wait for others."""
_looks: dict[tuple[asyncio.AbstractEventLoop, Run], asyncio.Future[bool]] = {}
"""Whether it is over, for those who wait in a run: one of them looks for all, as there may be thousands."""


async def drained() -> None:
    """Wait until no other branch of the current run is inside a boundary, while the grace of its stop lasts.

    For a branch that met the stop where nothing could wait, in ``check()`` or a plain ``with boundary(…)``, and is
    about to raise it into a task group, which cancels its siblings at once, paid calls included (N12): ``except
    AgentStopped: await drained(); raise``. What the branch itself is a part of is not waited for. Returns at once if
    the run was not told to stop, and at the INTERRUPT rung at the latest, so that it prolongs no stop (G6).
    """
    run, me = context.current_run(), tasks.current()
    if run is not None and me is not None:
        await _drain(run, me)


async def hold_back() -> None:
    """Do the same on behalf of a branch that meets the stop where it awaits something of ours.

    Not for the run's own task: only its clean-up may know how to end what still runs, and it has the grace for that.
    """
    run, me = context.current_run(), tasks.current()
    if run is not None and me is not None and me is not run._main and not me.task.cancelling():
        await _drain(run, me)


async def _drain(run: Run, me: TaskParticipant) -> None:
    if run._stop is None:
        return
    until = run._stop.requested_at + run.policy.grace  # a cooperative stop has no rung that would end it
    _waiting.add(me)
    try:
        while not await _is_over(run, until):
            pass  # whoever looked has been cancelled
    finally:
        _waiting.discard(me)


async def _is_over(run: Run, until: float) -> bool:
    """Wait for the calls of others, and return True; or False if somebody else waited for them and gave up."""
    loop = asyncio.get_running_loop()
    look = _looks.get((loop, run))
    if look is not None:
        await asyncio.wait([look])  # a cancel of this branch is none of the look's
        return look.result()
    look = _looks[loop, run] = loop.create_future()
    try:
        # A look now and then: leaving a boundary wakes no one, so that it stays cheap.
        while _may_wait(run) and clock.now() < until and _is_another_inside(run):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        look.set_result(True)
    finally:
        del _looks[loop, run]
        if not look.done():
            look.set_result(False)
    return True


def _may_wait(run: Run) -> bool:
    return run._rung is None and all(stop.mode <= Mode.GRACEFUL for stop in run._stops())


def _is_another_inside(run: Run) -> bool:
    """Return whether a call is in flight, in a run or below it, that is not just waiting for those who wait here."""
    around = _around_those_who_wait()
    nodes = [run]
    for node in nodes:
        nodes += node._offspring()
        if any(not entered.is_idle and _is_call(entered.holder, around) for entered in node._list(Boundary)):
            return True
    return False


def _is_call(holder: object, around: set[Task[Any]]) -> bool:
    """Return whether whoever is inside a boundary makes a call that an unwinding branch could cut.

    A thread or a process that lives beside the branches is none: nothing unwinds it, and it may wait for the clean-up.
    """
    if isinstance(holder, ThreadParticipant):
        return holder._thread is not threading.current_thread()
    return isinstance(holder, TaskParticipant) and holder.task not in around


def _around_those_who_wait() -> set[Task[Any]]:
    """Return the tasks of those who wait, and of those that they were started by: what these are inside waits too."""
    found: set[Task[Any]] = set()
    for waiter in list(_waiting):
        participant: TaskParticipant | None = waiter
        while participant is not None and participant.task not in found:
            found.add(participant.task)
            participant = participant.started_by()
    return found

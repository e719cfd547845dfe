"""Lets the calls in flight of parallel branches finish before one of them unwinds the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from stoppable._core import clock, context, participants
from stoppable._core.boundary import Boundary
from stoppable._core.run import Run

_LOOK_SECONDS = 0.01


async def drained() -> None:
    """Wait until no other branch of the current run is inside a boundary, while the grace of its stop lasts.

    For a branch that met the stop and is about to raise it into a task group, which cancels its siblings at once, paid
    calls included (N12): ``except AgentStopped: await drained(); raise``. Returns at once if the run was not told to
    stop, and at the INTERRUPT rung at the latest, so that it prolongs no stop (G6).
    """
    run = context.current_run()
    if run is None or run._stop is None:
        return
    me = participants.participant()
    until = clock.now() + run.policy.grace  # a cooperative stop has no rung that would end it
    while run._rung is None and clock.now() < until and any(_of_others(run, me)):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)


def _of_others(run: Run, me: participants.Participant | None) -> Iterator[Boundary]:
    """Yield the open boundaries of a run and of the runs below it that somebody else is inside."""
    nodes = [run]
    for node in nodes:
        nodes += node._offspring()
        yield from (entered for entered in node._list(Boundary) if entered.holder is not me)

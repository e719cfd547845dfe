"""Sub-agents as child runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import stoppable
from stoppable.adapters.adk.turn import Unit, at
from stoppable.adapters.handover import Handover


class _Child:
    """An agent that runs as a child of the current run, in a separate task, one event at a time."""

    def __init__(self, name: str, steps: Callable[[], Any]) -> None:
        self._name, self._steps = name, steps
        self.events = Handover()
        self.error: BaseException | None = None
        self._run: stoppable.Run | None = None

    async def body(self) -> None:
        try:
            async with stoppable.open_run(self._name) as self._run, contextlib.aclosing(self._steps()) as events:
                self.events.release_with_stop()
                async for event in events:
                    self.events.put(event)
                    await self.events.until_wanted()
        except BaseException as error:  # every exception reaches the reader once the run has ended
            self.error = error
        self.events.end()

    async def leave(self, task: asyncio.Task[None]) -> None:
        """End the run because its consumer left; a run that is already stopping ends without being cut off."""
        self.events.release()
        if self._run is None:
            task.cancel()
        elif not self._run.token.stopped:
            reason = stoppable.Reason.of("the agent above it went on", kind=stoppable.ReasonKind.DISCONNECT)
            self._run.stop("immediate", reason)
        await asyncio.wait([task])


async def as_child(unit: Unit, name: str, steps: Callable[[], Any]) -> AsyncIterator[Any]:
    """Yield the events of an agent that runs as a child of the current run.

    The agent continues when its caller asks for more, as in plain ADK, because by then the previous event is in the
    session. The run has a separate task, because a run cannot span a ``yield``: the consumer would be in the run too.
    """
    child = _Child(name, steps)
    with at(unit):
        task = asyncio.create_task(child.body(), name=f"agent {name}")
    try:
        async for event in child.events:
            yield event
    finally:
        if not task.done():
            await child.leave(task)
    if child.error is not None:
        raise child.error

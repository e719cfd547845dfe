"""One invocation of a runner: what is under way, its events, when a stop may be raised in it, and its sub-agents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import stoppable
from stoppable.adapters._shared import CurrentSpan, Handover, Span, TurnProgress
from stoppable.adapters.turn import Turn

EVENT = "adk"
"""The name under which the events of ADK are in the log of a run."""


class AdkSpan(Span):
    """An agent, a model call or a tool call that has begun and not ended."""

    __slots__ = ("target", "turn")

    def __init__(self, turn: AdkTurn, target: Any, outer: AdkSpan | None) -> None:
        super().__init__(outer)
        self.turn: AdkTurn = turn
        self.target: Any = target


current: CurrentSpan[AdkSpan] = CurrentSpan("stoppable-adk")


class AdkTurn(TurnProgress[AdkSpan]):
    """The events of one invocation on their way to its reader, and what of it is under way."""

    def __init__(self) -> None:
        super().__init__(current)
        self.events: Handover = Handover()
        """For the reader, which may leave."""
        self.error: BaseException | None = None
        self.invocation_id: str | None = None
        self.forwarded_ids: set[str] = set()
        """The ids of the events that the reader got."""
        self.unsaved: Turn = Turn()
        """The tool calls that have begun, and the text that was streamed and is in no session yet, by author."""

    def tell(self, event: Any, wire: dict[str, Any]) -> None:
        """Pass an event to the consumer, and to the followers of the run."""
        stoppable.emit(EVENT, event=wire)
        self.forwarded_ids.add(event.id)
        if not event.partial:
            self.unsaved.forget_text(event.author)
        elif event.content:
            self.unsaved.say("".join(part.text or "" for part in event.content.parts or []), event.author)
        self.events.put(event)

    def close(self) -> None:
        """End the stream of the reader; may be called on any thread of the turn."""
        self.events.end()

    def span(self, target: Any) -> AdkSpan:
        """Return a new span, below the current one."""
        return AdkSpan(self, target, current.get())


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


async def as_child(span: AdkSpan, name: str, steps: Callable[[], Any]) -> AsyncIterator[Any]:
    """Yield the events of an agent that runs as a child of the current run.

    The agent continues when its caller asks for more, as in plain ADK, because by then the previous event is in the
    session. The run has a separate task, because a run cannot span a ``yield``: the consumer would be in the run too.
    """
    child = _Child(name, steps)
    with current.use(span):
        task = asyncio.create_task(child.body(), name=f"agent {name}")
    try:
        async for event in child.events:
            yield event
    finally:
        if not task.done():
            await child.leave(task)
    if child.error is not None:
        raise child.error

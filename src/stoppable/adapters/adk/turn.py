"""One invocation of a runner: what is under way, its events, and when a stop may be raised in it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import stoppable
from stoppable.adapters import branches
from stoppable.adapters.handover import Handover

EVENT = "adk"
"""The name under which the events of ADK are in the log of a run."""


class Unit(branches.Unit):
    """An agent, a model call or a tool call that has begun and not ended."""

    __slots__ = ("target", "turn")

    def __init__(self, turn: Turn, target: Any, outer: Unit | None) -> None:
        super().__init__(outer)
        self.turn: Turn = turn
        self.target: Any = target


_here: contextvars.ContextVar[Unit | None] = contextvars.ContextVar("stoppable-adk", default=None)


def here() -> Unit | None:
    """Return the unit that the calling code runs in, or None outside a turn."""
    return _here.get()


@contextlib.contextmanager
def at(unit: Unit | None) -> Iterator[None]:
    """Make a unit the current one in the block."""
    token = _here.set(unit)
    try:
        yield
    finally:
        _here.reset(token)


class Turn(branches.UnderWay):
    """The events of one invocation on their way to its reader, and what of it is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.events: Handover = Handover()
        """For the reader, which may leave."""
        self.error: BaseException | None = None
        self.invocation_id: str | None = None
        self.told: set[str] = set()
        """The ids of the events that the reader got."""
        self.said: dict[str, str] = {}
        """Text that was streamed and is in no session yet, by author."""
        self.calls: dict[str, Any] = {}
        """The results of the tool calls that have begun, by call id; UNFINISHED if there is none."""

    def tell(self, event: Any, wire: dict[str, Any]) -> None:
        """Pass an event to the consumer, and to the followers of the run."""
        stoppable.emit(EVENT, event=wire)
        self.told.add(event.id)
        text = "".join(part.text or "" for part in event.content.parts or []) if event.content else ""
        self.said[event.author] = self.said.get(event.author, "") + text if event.partial else ""
        self.events.put(event)

    def close(self) -> None:
        """End the stream of the reader; may be called on any thread of the turn."""
        self.events.end()

    @contextlib.contextmanager
    def inside(self, target: Any) -> Iterator[Unit]:
        """Make the block a unit of the turn; a generator, whose caller must not see it, uses ``begin`` and ``at``."""
        unit = self.begin(target)
        try:
            with at(unit):
                yield unit
        finally:
            self.end(unit)

    def begin(self, target: Any) -> Unit:
        """Note that something of the turn is under way."""
        unit = Unit(self, target, here())
        self.add(unit)
        return unit


class _Unfinished:
    def __repr__(self) -> str:
        return "<unfinished>"


UNFINISHED: Any = _Unfinished()
"""A tool call that has begun, and whose result is unknown."""

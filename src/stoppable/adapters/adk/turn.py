"""One invocation of a runner: what is under way, its events, and when a stop may be raised in it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import stoppable

EVENT = "adk"
"""The name under which the events of ADK are in the log of a run."""


class Unit:
    """An agent, a model call or a tool call that has begun and not ended."""

    __slots__ = ("outer", "target", "turn", "waiters")

    def __init__(self, turn: Turn, target: Any, outer: Unit | None) -> None:
        self.turn: Turn = turn
        self.target: Any = target
        self.outer: Unit | None = outer
        self.waiters: int = 0
        """How many tasks inside it have met the stop and wait for the others."""

    def chain(self) -> Iterator[Unit]:
        """Yield it and the units around it."""
        unit: Unit | None = self
        while unit is not None:
            yield unit
            unit = unit.outer


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


class Turn:
    """The events of one invocation on their way to its reader, and what of it is under way."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        """For the reader, which may leave; None is the end."""
        self.error: Exception | None = None
        self.invocation_id: str | None = None
        self.told: set[str] = set()
        """The ids of the events that the reader got."""
        self.said: dict[str, str] = {}
        """Text that was streamed and is in no session yet, by author."""
        self.calls: dict[str, Any] = {}
        """The results of the tool calls that have begun, by call id; UNFINISHED if there is none."""
        self._units: set[Unit] = set()
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_quiet = False

    def tell(self, event: Any, wire: dict[str, Any]) -> None:
        """Pass an event to the consumer, and to the followers of the run."""
        stoppable.emit(EVENT, event=wire)
        self.told.add(event.id)
        text = "".join(part.text or "" for part in event.content.parts or []) if event.content else ""
        self.said[event.author] = self.said.get(event.author, "") + text if event.partial else ""
        self.events.put_nowait(event)

    def close(self) -> None:
        """End the stream of the reader; may be called on any thread of the turn."""
        self.events.put_nowait(None)

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
        self._units.add(unit)
        return unit

    @contextlib.contextmanager
    def suspended(self, unit: Unit) -> Iterator[None]:
        """Let a generator yield in the block: while its reader has the item, nothing of it is under way."""
        self.end(unit)
        try:
            yield
        finally:
            self._units.add(unit)

    def end(self, unit: Unit) -> None:
        """Note that a unit has ended."""
        self._units.discard(unit)
        self._wake()

    async def meet(self, unit: Unit | None) -> None:
        """Raise the stop of the run if there is one, but not while others of the turn finish what they have begun.

        Otherwise one branch that meets the stop would cut the call that another one has in flight: that is how task
        groups unwind. A branch that waits here is cancelled with the run when its grace is over.
        """
        if not stoppable.should_stop():
            return
        if unit is not None and self._is_on_loop():
            await self._quiet(unit)
        stoppable.check()

    async def _quiet(self, unit: Unit) -> None:
        chain = list(unit.chain())
        for one in chain:
            one.waiters += 1
        self._wake()
        try:
            while not self._is_quiet:
                if all(one.waiters for one in self._units):
                    self._is_quiet = True  # stays set, like the stop: nothing is in flight that could be cut
                    self._wake()
                    return
                await self._changed()
        finally:
            for one in chain:
                one.waiters -= 1

    async def _changed(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _wake(self) -> None:
        if not self._is_on_loop():
            self._loop.call_soon_threadsafe(self._wake)
            return
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _is_on_loop(self) -> bool:
        """Return whether the caller is on the loop of the turn; ADK's pool runs async tools on other loops."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


class _Unfinished:
    def __repr__(self) -> str:
        return "<unfinished>"


UNFINISHED: Any = _Unfinished()
"""A tool call that has begun, and whose result is unknown."""

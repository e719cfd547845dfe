"""What is under way in a graph, so that a branch that meets the stop does not cut the call of another branch."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import stoppable
from stoppable.adapters.langgraph.settings import Settings
from stoppable.adapters.langgraph.threads import Thread


class Unit:
    """A graph, a node, a model call or a tool call that has begun and not ended."""

    __slots__ = ("is_node", "outer", "said", "streaming", "target", "thread", "turn", "waiters")

    def __init__(self, turn: Turn, thread: Thread, target: Any, outer: Unit | None) -> None:
        self.turn: Turn = turn
        self.thread: Thread = thread
        """The part of the thread that its messages belong to."""
        self.target: Any = target
        self.outer: Unit | None = outer
        self.waiters: int = 0
        """How many tasks inside it have met the stop and wait for the others."""
        self.streaming: bool = False
        self.is_node: bool = False
        self.said: dict[str, str] = {}
        """The text that models streamed in a node, by the id of the message, until the node has returned it."""

    def chain(self) -> Iterator[Unit]:
        """Yield it and the units around it."""
        unit: Unit | None = self
        while unit is not None:
            yield unit
            unit = unit.outer

    def say(self, message: Any) -> None:
        """Remember a piece of text that a model streams, with the node that it does so in."""
        node = next((one for one in self.chain() if one.is_node), self)
        made_id, text = message.id or f"stopped-{id(self)}", str(message.text)
        node.said[made_id] = node.said.get(made_id, "") + text
        if text and self.turn.on_text is not None:
            self.turn.on_text(text)

    def step(self, advance: Callable[[], Any]) -> Any:
        """Take one step of a generator inside the unit, which its reader is not in."""
        with at(self):
            return advance()

    async def astep(self, advance: Callable[[], Awaitable[Any]]) -> Any:
        """Take one step of an async generator inside the unit."""
        with at(self):
            return await advance()


_here: contextvars.ContextVar[Unit | None] = contextvars.ContextVar("stoppable-langgraph", default=None)


def here() -> Unit | None:
    """Return the unit that the calling code runs in, or None outside a graph that is a run."""
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
    """One call of a graph, with the graphs that are called in it."""

    def __init__(self, settings: Settings, on_text: Callable[[str], object] | None = None) -> None:
        self.settings = settings
        self._units: set[Unit] = set()
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_quiet = False
        self._loop = _running_loop()
        self.on_text = on_text
        """Called with the text that models stream."""

    @contextlib.contextmanager
    def inside(self, target: Any, outer: Unit) -> Iterator[Unit]:
        """Make the block a unit of the turn; a generator, whose caller must not see it, uses ``begin`` and ``at``."""
        unit = self.begin(target, outer)
        try:
            with at(unit):
                yield unit
        finally:
            self.end(unit)

    def begin(self, target: Any, outer: Unit) -> Unit:
        """Note that something of the turn is under way."""
        unit = Unit(self, outer.thread, target, outer)
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

    async def meet(self, unit: Unit) -> None:
        """Raise the stop of the run if there is one, but not while others of the turn finish what they have begun.

        Otherwise one node that meets the stop would cut the call that another has in flight: LangGraph cancels the
        nodes beside one that raises. A node that waits here is cancelled with the run when its grace is over.
        """
        if stoppable.should_stop():
            if self._loop is not None and self._loop is _running_loop():
                await self._quiet(unit)
            stoppable.check()

    async def _quiet(self, unit: Unit) -> None:
        chain = list(unit.chain())
        for one in chain:
            one.waiters += 1
        self._wake()
        try:
            while not self._is_quiet:
                if all(one.waiters for one in list(self._units)):
                    self._is_quiet = True  # stays set, like the stop: nothing is in flight that could be cut
                    self._wake()
                    return
                await self._changed()
        finally:
            for one in chain:
                one.waiters -= 1

    async def _changed(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _wake(self) -> None:
        if self._loop is None or not self._waiting:
            return
        if self._loop is not _running_loop():
            self._loop.call_soon_threadsafe(self._wake)
            return
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

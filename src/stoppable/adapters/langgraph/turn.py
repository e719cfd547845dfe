"""One call of a graph: what is under way in it, and what its models have said so far."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from stoppable.adapters import branches
from stoppable.adapters.langgraph.settings import Settings
from stoppable.adapters.langgraph.threads import Thread


class Unit(branches.Unit):
    """A graph, a node, a model call or a tool call that has begun and not ended."""

    __slots__ = ("finished", "is_internal", "is_node", "message_id", "said", "streaming", "target", "thread", "turn")

    def __init__(self, turn: Turn, thread: Thread, target: Any, outer: Unit | None) -> None:
        super().__init__(outer)
        self.turn: Turn = turn
        self.thread: Thread = thread
        """The part of the thread that its messages belong to."""
        self.target: Any = target
        self.streaming: bool = False
        self.is_node: bool = False
        self.is_internal: bool = False
        """Whether what models say in it is no answer."""
        self.said: dict[str, str] = {}
        """The text that models streamed in a node, by the id of the message, until the node has returned it."""
        self.finished: set[str] = set()
        """The ids of those messages that are complete."""
        self.message_id: str | None = None
        """The message that a model streams."""

    def say(self, message: Any) -> None:
        """Remember a piece of text that a model streams, with the node that it does so in, unless it is internal."""
        text = str(message.text)
        if text and self.turn.on_text is not None and not any(one.is_internal for one in self.chain()):
            self.turn.on_text(text)
        # A tool hides what is said below it from its own thread; a subgraph with another thread has its own answers.
        if any(one.is_internal for one in self.chain() if one.thread is self.thread):
            return
        node, message_id = self._node(), str(message.id or f"stopped-{id(self)}")
        self.message_id = message_id
        if message_id not in node.said:  # what was complete before it, as of a guard, was no answer
            node.said = {each: words for each, words in node.said.items() if each not in node.finished}
        node.said[message_id] = node.said.get(message_id, "") + text

    def finish(self) -> None:
        """Note that the message is complete; it may still be the answer that the node returns."""
        if self.message_id is not None:
            self._node().finished.add(self.message_id)

    def _node(self) -> Unit:
        return next((one for one in self.chain() if one.is_node), self)

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


class Turn(branches.UnderWay):
    """One call of a graph, with the graphs that are called in it."""

    def __init__(self, settings: Settings, on_text: Callable[[str], object] | None = None) -> None:
        super().__init__()
        self.settings = settings
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
        self.add(unit)
        return unit

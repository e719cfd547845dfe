"""A run as a store in this process keeps it."""

from __future__ import annotations

from collections.abc import Iterator

from stoppable._core.stop import Answer
from stoppable.records import Event, Hold, RunRecord, changed

Answered = tuple[float, list[tuple[str, Answer]], Hold | None, float | None]
"""A stop that was made: when, what was answered for which run, the hold that it placed, and until when it waits."""


class Kept:
    """A run with what belongs to it."""

    __slots__ = ("children", "events", "number", "parent", "record", "request")

    def __init__(self, record: RunRecord, request: str, number: int, parent: Kept | None) -> None:
        self.record = record
        self.request = request
        self.number = number
        self.parent = parent
        self.children: list[Kept] = []
        self.events: list[Event] = []
        if parent is not None:
            parent.children.append(self)

    def told(self) -> RunRecord:
        """Return the record as it is now."""
        if self.record.last_event != len(self.events):
            self.record = changed(self.record, last_event=len(self.events))
        return self.record

    def subtree(self) -> list[Kept]:
        """Return it and all below it, parents first."""
        nodes: list[Kept] = [self]
        for node in nodes:  # grows while it is walked
            nodes += node.children
        return nodes

    def above(self) -> Iterator[str]:
        """Yield the ids of the runs above it."""
        node = self.parent
        while node is not None:
            yield node.record.id
            node = node.parent

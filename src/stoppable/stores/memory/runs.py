"""A run in memory, with its children and its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stoppable._core.stop import Answer
from stoppable.records import Event, Hold, RunRecord, changed

Answered = tuple[float, list[tuple[str, Answer]], Hold | None, float | None]
"""An answered stop: when, the answer for each run, the hold that it placed, and until when it waits."""


class StoredRun:
    """A run with what belongs to it."""

    __slots__ = ("children", "events", "number", "parent", "record", "request")

    def __init__(self, record: RunRecord, request: str, number: int, parent: StoredRun | None) -> None:
        self.record: RunRecord = record
        self.request: str = request
        self.number: int = number
        self.parent: StoredRun | None = parent
        self.children: list[StoredRun] = []
        self.events: list[Event] = []
        if parent is not None:
            parent.children.append(self)

    def current(self) -> RunRecord:
        """Return the current record."""
        if self.record.last_event != len(self.events):
            self.record = changed(self.record, last_event=len(self.events))
        return self.record

    def subtree(self) -> list[StoredRun]:
        """Return the run and all its descendants, parents first."""
        nodes: list[StoredRun] = [self]
        for node in nodes:  # grows while it is walked
            nodes += node.children
        return nodes

    def above(self) -> Iterator[str]:
        """Yield the ids of its ancestors."""
        node = self.parent
        while node is not None:
            yield node.record.id
            node = node.parent


def old_trees(runs: Mapping[str, StoredRun], before: float, limit: int) -> set[str]:
    """Return the runs of whole trees that ended before a time; starts no further tree after ``limit`` runs."""
    found: set[str] = set()
    for root in [kept for kept in runs.values() if kept.record.parent_id not in runs]:
        tree = root.subtree()
        is_old = all(node.record.over and (node.record.ended_at or 0) < before for node in tree)
        if len(found) < limit and is_old:
            found.update(node.record.id for node in tree)
    return found

"""The events of all runs in the order in which they came."""

from __future__ import annotations

from collections.abc import Callable, Collection

from stoppable.records import Event, EventType
from stoppable.stores.base import Tail


class AllEvents:
    """Events with their places; the place of a deleted event is not reused."""

    __slots__ = ("_events", "_first")

    def __init__(self) -> None:
        self._events: list[Event | None] = []
        self._first = 0  # how many were deleted before the first one

    def add(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)

    @property
    def place(self) -> int:
        """The place of the last event."""
        return self._first + len(self._events)

    def tail(self, after: int, limit: int, types: Collection[EventType], is_meant: Callable[[str], bool]) -> Tail:
        """Return events after a place."""
        found: list[tuple[int, Event]] = []
        start = min(max(after, self._first), self.place)
        for place, event in enumerate(self._events[start - self._first :], start + 1):
            if event is not None and (not types or event.type in types) and is_meant(event.run_id):
                if len(found) == limit:
                    return Tail(place=found[-1][0] if found else start, events=tuple(found), has_more=True)
                found.append((place, event))
        return Tail(place=self.place, events=tuple(found))

    def forget(self, run_ids: Collection[str]) -> None:
        """Delete the events of runs."""
        if not run_ids:
            return
        self._events = [None if event is None or event.run_id in run_ids else event for event in self._events]
        kept = next((number for number, event in enumerate(self._events) if event is not None), len(self._events))
        self._first += kept
        del self._events[:kept]

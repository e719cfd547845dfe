"""Follows the logs of a tree, or of all runs, in the order of their events."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import fields
from typing import Self

from stoppable.errors import RunNotFound, StoreError
from stoppable.records import Event, EventType, TreeEvent
from stoppable.stores.base import Store, Tail
from stoppable.stores.listeners import ANY
from stoppable.supervisor.waiting import LOOK_SECONDS, watching

_logger = logging.getLogger("stoppable")

_FIELDS = tuple(one.name for one in fields(Event))
_CLOSE_SECONDS = 5.0
_END = 2**53
"""A place after every event."""


async def tree_events(store: Store, run_id: str, after: int = 0) -> AsyncIterator[TreeEvent]:
    """Yield the events of a run and all its descendants after a place: past events first, then live ones.

    It ends with the end of the run itself, which comes after the ends of the runs below it.
    """
    with watching(store, ANY) as news:
        while True:
            record = await store.get(run_id)
            tail = await store.tail(after, below=run_id)
            for event in _placed(tail):
                yield event
                if _is_end(event, run_id):
                    return
            after = tail.place
            if not tail.has_more:
                if record.over:
                    return  # the position is after the end
                await news.wait(LOOK_SECONDS)


def tree_events_sync(store: Store, run_id: str, after: int = 0) -> Iterator[TreeEvent]:
    """Yield the events of a run and all its descendants after a place, on a thread."""
    news = threading.Event()
    with contextlib.closing(store.watch(ANY, news.set)):
        while True:
            news.clear()
            record = store.get(run_id).result()
            tail = store.tail(after, below=run_id).result()
            for event in _placed(tail):
                yield event
                if _is_end(event, run_id):
                    return
            after = tail.place
            if not tail.has_more:
                if record.over:
                    return
                news.wait(LOOK_SECONDS)


def _placed(tail: Tail) -> Iterator[TreeEvent]:
    for place, event in tail.events:
        yield TreeEvent(place=place, **{name: getattr(event, name) for name in _FIELDS})


def _is_end(event: Event, run_id: str) -> bool:
    return event.type is EventType.DONE and event.run_id == run_id


class Listener:
    """Calls a function with events as they come, one after the other, on a separate thread, until it is closed.

    Errors of the function are logged.
    """

    def __init__(
        self, store: Store, call: Callable[[TreeEvent], object], below: str | None, types: Collection[EventType]
    ) -> None:
        self._store = store
        self._call = call
        self._below = below
        self._types = types
        self._news = threading.Event()
        self._is_closed = False
        self._subscription = store.watch(ANY, self._news.set)  # first, so that no event is missed in between
        self._place = store.tail(_END, 1).result().place
        self._thread = threading.Thread(target=self._follow, name="stoppable-listener", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return not self._is_closed

    def close(self) -> None:
        """Stop calling the function; waits some seconds for a call in progress, unless it is called from there."""
        self._is_closed = True
        self._subscription.close()
        self._news.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self) -> None:
        while not self._is_closed:
            self._news.clear()
            try:
                tail = self._store.tail(self._place, types=self._types, below=self._below).result()
            except RunNotFound:  # it was purged, or has not started
                tail = Tail(place=self._place)
            except StoreError as error:
                if self._is_closed:
                    return
                _logger.warning("a listener waits for the store: %s", error)
                tail = Tail(place=self._place)
            self._place = tail.place
            for event in _placed(tail):
                if self._is_closed:
                    return
                self._tell(event)
            if not tail.has_more:
                self._news.wait(LOOK_SECONDS)

    def _tell(self, event: TreeEvent) -> None:
        try:
            self._call(event)
        except Exception:
            _logger.exception("run %s: a listener raised an error", event.run_id)

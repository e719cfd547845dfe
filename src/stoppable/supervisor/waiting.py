"""Waiting for news of a run that is kept, wherever it is executed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial

from stoppable._core import clock
from stoppable.errors import RunNotFound
from stoppable.records import Event, EventType, RunRecord
from stoppable.stores.base import Store

_FIRST_LOOK_SECONDS = 0.002
LOOK_SECONDS = 2.0  # even without a notification: those may be lost


async def record_when(
    store: Store, run_id: str, is_so: Callable[[RunRecord], bool], seconds: float | None = None
) -> RunRecord:
    """Return the record once something is so, or as it is when the time is over."""
    deadline = None if seconds is None else clock.now() + seconds
    with watching(store, run_id) as news:
        for pause in _pauses():
            record = await store.get(run_id)
            left = pause if deadline is None else min(pause, deadline - clock.now())
            if is_so(record) or left <= 0:
                return record
            await news.wait(left)
    raise AssertionError("there is always another look")


def record_when_sync(
    store: Store, run_id: str, is_so: Callable[[RunRecord], bool], seconds: float | None = None
) -> RunRecord:
    """Return the record once something is so, or as it is when the time is over; on a thread."""
    deadline = None if seconds is None else clock.now() + seconds
    news = threading.Event()
    subscription = store.watch(run_id, news.set)
    try:
        for pause in _pauses():
            news.clear()
            record = store.get(run_id).result()
            left = pause if deadline is None else min(pause, deadline - clock.now())
            if is_so(record) or left <= 0:
                return record
            news.wait(left)
    finally:
        subscription.close()
    raise AssertionError("there is always another look")


def _pauses() -> Iterator[float]:
    """Yield the seconds before each look.

    A process hears of what another one wrote when it looks into the store next, which is often enough for a list, but
    not for a stop: its gate is closed a millisecond after it was told.
    """
    pause = _FIRST_LOOK_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LOOK_SECONDS)


async def records_when(
    store: Store, run_ids: Sequence[str], is_so: Callable[[RunRecord], bool], seconds: float
) -> dict[str, RunRecord]:
    """Return the records of many runs once something is so of each, or as they are when the time is over.

    Of one that was purged meanwhile nothing is left to return.
    """
    deadline = clock.now() + seconds
    found: dict[str, RunRecord] = {}
    waited = dict.fromkeys(run_ids)
    with watching(store, *run_ids) as news:
        changed: Iterable[str] = run_ids
        while True:
            for run_id, reply in [(run_id, store.get(run_id)) for run_id in changed]:
                try:
                    found[run_id] = await reply
                except RunNotFound:
                    found.pop(run_id, None)
                    waited.pop(run_id, None)
                else:
                    if is_so(found[run_id]):
                        waited.pop(run_id, None)
            left = deadline - clock.now()
            if not waited or left <= 0:
                return found
            told = await news.wait(min(left, LOOK_SECONDS))
            changed = [run_id for run_id in told or tuple(waited) if run_id in waited]


def records_when_sync(
    store: Store, run_ids: Sequence[str], is_so: Callable[[RunRecord], bool], seconds: float
) -> dict[str, RunRecord]:
    """Return the records of many runs once something is so of each, or when the time is over; on a thread."""
    deadline = clock.now() + seconds
    found: dict[str, RunRecord] = {}
    for run_id in run_ids:
        with contextlib.suppress(RunNotFound):
            found[run_id] = record_when_sync(store, run_id, is_so, max(0.0, deadline - clock.now()))
    return found


async def events(store: Store, run_id: str, after: int = 0) -> AsyncIterator[Event]:
    """Yield the events of a run after a sequence number: past events first, then live ones, until the run ends.

    A reader that is slow or goes away holds up nobody: it reads what is kept.
    """
    with watching(store, run_id) as news:
        while True:
            record = await store.get(run_id)
            found = await store.read(run_id, after)
            for event in found:
                after = event.seq
                yield event
                if event.type is EventType.DONE:
                    return
            if not found:
                if record.over and after >= record.last_event:
                    return  # the position is after the end
                await news.wait(LOOK_SECONDS)


def events_sync(store: Store, run_id: str, after: int = 0) -> Iterator[Event]:
    """Yield the events of a run after a sequence number, on a thread."""
    news = threading.Event()
    subscription = store.watch(run_id, news.set)
    try:
        while True:
            news.clear()
            record = store.get(run_id).result()
            found = store.read(run_id, after).result()
            for event in found:
                after = event.seq
                yield event
                if event.type is EventType.DONE:
                    return
            if not found:
                if record.over and after >= record.last_event:
                    return
                news.wait(LOOK_SECONDS)
    finally:
        subscription.close()


class News:
    """Which of some runs may have changed, told by whatever thread to one task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told: set[str] = set()
        self._event = asyncio.Event()

    def tell(self, run_id: str) -> None:
        """Say that a run may have changed; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._tell, run_id)

    def _tell(self, run_id: str) -> None:
        self._told.add(run_id)
        self._event.set()

    async def wait(self, seconds: float) -> set[str]:
        """Return those that were told of since the last time, or none if nobody is within some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
        told, self._told = self._told, set()
        return told


@contextlib.contextmanager
def watching(store: Store, *run_ids: str) -> Iterator[News]:
    """Have a task told when runs may have changed."""
    news = News()
    subscriptions = [store.watch(run_id, partial(news.tell, run_id)) for run_id in run_ids]
    try:
        yield news
    finally:
        for subscription in subscriptions:
            subscription.close()

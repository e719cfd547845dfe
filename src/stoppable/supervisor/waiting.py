"""Waits for changes of stored runs, in whatever process they are executed."""

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
LOOK_SECONDS = 2.0  # the longest pause without a notification, which may be lost


async def record_when(
    store: Store, run_id: str, is_so: Callable[[RunRecord], bool], seconds: float | None = None
) -> RunRecord:
    """Return the record once ``is_so`` is true of it, or when the time is over."""
    deadline = None if seconds is None else clock.now() + seconds
    with watching(store, run_id) as news:
        for pause in _pauses():
            record = await store.get(run_id)
            left = pause if deadline is None else min(pause, deadline - clock.now())
            if is_so(record) or left <= 0:
                return record
            await news.wait(left)
    raise AssertionError("the pauses never end")


def record_when_sync(
    store: Store, run_id: str, is_so: Callable[[RunRecord], bool], seconds: float | None = None
) -> RunRecord:
    """Return the record once ``is_so`` is true of it, or when the time is over; blocks."""
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
    raise AssertionError("the pauses never end")


def _pauses() -> Iterator[float]:
    """Yield the seconds to wait before each read of the record.

    The pauses begin short, because a stopped run closes its gate within a millisecond, and the notification of a change
    by another process may take longer than that.
    """
    pause = _FIRST_LOOK_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, LOOK_SECONDS)


async def records_when(
    store: Store, run_ids: Sequence[str], is_so: Callable[[RunRecord], bool], seconds: float
) -> dict[str, RunRecord]:
    """Return the records of many runs once ``is_so`` is true of each, or when the time is over.

    Runs that were purged meanwhile are left out.
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
    """Return the records of many runs once ``is_so`` is true of each, or when the time is over; blocks."""
    deadline = clock.now() + seconds
    found: dict[str, RunRecord] = {}
    for run_id in run_ids:
        with contextlib.suppress(RunNotFound):
            found[run_id] = record_when_sync(store, run_id, is_so, max(0.0, deadline - clock.now()))
    return found


async def events(store: Store, run_id: str, after: int = 0) -> AsyncIterator[Event]:
    """Yield the events of a run after a sequence number: past events first, then live ones, until the run ends.

    A slow reader delays nothing else, because it reads from the store.
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
    """Collects the ids of runs that may have changed, from any thread, for one task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told: set[str] = set()
        self._event = asyncio.Event()

    def tell(self, run_id: str) -> None:
        """Report that a run may have changed; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._tell, run_id)

    def _tell(self, run_id: str) -> None:
        self._told.add(run_id)
        self._event.set()

    async def wait(self, seconds: float) -> set[str]:
        """Return the ids reported since the last call; waits up to ``seconds`` for the first one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
        told, self._told = self._told, set()
        return told


@contextlib.contextmanager
def watching(store: Store, *run_ids: str) -> Iterator[News]:
    """Subscribe to changes of runs while the block runs."""
    news = News()
    subscriptions = [store.watch(run_id, partial(news.tell, run_id)) for run_id in run_ids]
    try:
        yield news
    finally:
        for subscription in subscriptions:
            subscription.close()

"""Waiting for news of a run that is kept, wherever it is executed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from stoppable._core import clock
from stoppable.records import Event, EventType, RunRecord
from stoppable.stores.base import Store

_LOOK_SECONDS = 2.0  # even without news: being told is speed, the store is the truth


async def record_when(
    store: Store, run_id: str, is_so: Callable[[RunRecord], bool], seconds: float | None = None
) -> RunRecord:
    """Return the record once something is so, or as it is when the time is over."""
    deadline = None if seconds is None else clock.now() + seconds
    with _news(store, run_id) as news:
        while True:
            news.clear()
            record = await store.get(run_id)
            left = _LOOK_SECONDS if deadline is None else min(_LOOK_SECONDS, deadline - clock.now())
            if is_so(record) or left <= 0:
                return record
            await _wait(news, left)


def record_when_sync(
    store: Store, run_id: str, is_so: Callable[[RunRecord], bool], seconds: float | None = None
) -> RunRecord:
    """Return the record once something is so, or as it is when the time is over; on a thread."""
    deadline = None if seconds is None else clock.now() + seconds
    news = threading.Event()
    subscription = store.watch(run_id, news.set)
    try:
        while True:
            news.clear()
            record = store.get(run_id).result()
            left = _LOOK_SECONDS if deadline is None else min(_LOOK_SECONDS, deadline - clock.now())
            if is_so(record) or left <= 0:
                return record
            news.wait(left)
    finally:
        subscription.close()


async def events(store: Store, run_id: str, after: int = 0) -> AsyncIterator[Event]:
    """Yield the events of a run after a sequence number: those that are there, then live, until it is over.

    A reader that is slow or goes away holds up nobody: it reads what is kept.
    """
    with _news(store, run_id) as news:
        while True:
            news.clear()
            record = await store.get(run_id)
            found = await store.read(run_id, after)
            for event in found:
                after = event.seq
                yield event
                if event.type is EventType.DONE:
                    return
            if not found:
                if record.over and after >= record.last_event:
                    return  # asked for what comes after the end
                await _wait(news, _LOOK_SECONDS)


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
                news.wait(_LOOK_SECONDS)
    finally:
        subscription.close()


@contextlib.contextmanager
def _news(store: Store, run_id: str) -> Iterator[asyncio.Event]:
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(news.set)

    subscription = store.watch(run_id, wake)
    try:
        yield news
    finally:
        subscription.close()


async def _wait(news: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()

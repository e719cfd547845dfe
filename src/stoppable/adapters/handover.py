"""Events on their way from a task to a reader, one at a time."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import stoppable


class Handover:
    """A queue whose writer waits until its reader asks for more, as a generator does: the reader may refuse an event.

    Two things end the waiting for good: a reader that left, and a stop, after which nothing begins any more. Everything
    but ``put`` and ``end`` is for the loop of the two.
    """

    def __init__(self) -> None:
        self._events: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self._wanted = asyncio.Event()
        self._is_free = False
        self._is_taken = False  # the reader has had an event

    def put(self, event: Any) -> None:
        """Pass an event to the reader."""
        self._events.put_nowait((event,))

    def end(self) -> None:
        """Tell the reader that no more events come."""
        self._events.put_nowait(())

    def release_with_stop(self) -> None:
        """Make a stop of the current run end the waiting."""
        loop = asyncio.get_running_loop()
        stoppable.on_stop(lambda: loop.call_soon_threadsafe(self.release))

    def release(self) -> None:
        """End the waiting: the writer goes on without its reader."""
        self._is_free = True
        self._wanted.set()

    async def until_wanted(self) -> None:
        """Wait until the reader asks for more."""
        if not self._is_free:
            await self._wanted.wait()
            self._wanted.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Ask for the next event, and return it."""
        if self._is_taken:
            self._wanted.set()
        event = await self._events.get()
        if not event:
            raise StopAsyncIteration
        self._is_taken = True
        return event[0]

"""Events of a task on their way to a reader that may be slow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

_logger = logging.getLogger("stoppable.adapters.a2a")

_MOST_EVENTS, _MOST_BYTES = 1_024, 4_000_000


async def read_ahead(
    events: AsyncGenerator[Any, None], *, most_events: int = _MOST_EVENTS, most_bytes: int = _MOST_BYTES
) -> AsyncGenerator[Any, None]:
    """Yield events; take them from the SDK as they come, even while the reader is not ready for them.

    The SDK keeps a copy of the whole task with each event that waits for a reader, and up to 1,024 of them. Here the
    events alone are kept. A reader that falls too far behind gets what was kept, then the end of its stream; it may
    subscribe again.
    """
    waiting = _Waiting(most_events, most_bytes)
    filling = asyncio.create_task(waiting.fill(events))
    try:
        while await waiting.has_more():
            yield waiting.take()
    finally:
        filling.cancel()
        await asyncio.wait({filling})
    if waiting.error is not None:
        raise waiting.error


class _Waiting:
    """The events that a reader has not taken yet."""

    def __init__(self, most_events: int, most_bytes: int) -> None:
        self._most_events, self._most_bytes = most_events, most_bytes
        self._events: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._news, self._is_over = asyncio.Event(), False
        self.error: Exception | None = None

    async def fill(self, events: AsyncGenerator[Any, None]) -> None:
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    if not self._add(event):
                        _logger.warning("a stream ends: its reader is %d events behind", len(self._events))
                        return
        except Exception as error:
            self.error = error
        finally:
            self._is_over = True
            self._news.set()

    def _add(self, event: Any) -> bool:
        """Keep an event if there is room for it, and return whether there was; a single one may be of any size."""
        size = event.ByteSize()
        if self._events and (len(self._events) >= self._most_events or self._bytes + size > self._most_bytes):
            return False
        self._events.append((event, size))
        self._bytes += size
        self._news.set()
        return True

    async def has_more(self) -> bool:
        while not self._events and not self._is_over:
            self._news.clear()
            await self._news.wait()
        return bool(self._events)

    def take(self) -> Any:
        event, size = self._events.popleft()
        self._bytes -= size
        return event

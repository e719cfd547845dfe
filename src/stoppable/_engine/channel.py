"""Hands what a generator agent yields from its task to one consumer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Generic, TypeVar

from stoppable._core.run import Run
from stoppable._engine.waits import until

T = TypeVar("T")


class Channel(Generic[T]):
    """Items on their way, within one event loop.

    A lazy channel holds the generator back until its consumer asks for the next item, as a plain generator would be; an
    eager one lets it run ahead, so that a run whose stream nobody reads still ends.
    """

    def __init__(self, run: Run, *, lazy: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._lazy = lazy
        self._is_over = False
        self._arrival: asyncio.Future[None] = self._loop.create_future()
        self._demand: asyncio.Future[None] = self._loop.create_future()
        run._when_ended(self._close)

    async def pump(self, function: Callable[..., AsyncGenerator[T, Any]], *args: Any, **kwargs: Any) -> None:
        """Be the body of the run: iterate the generator and hand its items over."""
        async with contextlib.aclosing(function(*args, **kwargs)) as items:
            async for item in items:
                self._items.append(item)
                self._wake(self._arrival)
                if self._lazy:
                    await until(self._demand)
                    self._demand = self._loop.create_future()

    async def read(self) -> AsyncIterator[T]:
        """Yield the items until the run has ended."""
        while True:
            while self._items:
                yield self._items.popleft()
                self._wake(self._demand)
            if self._is_over:
                return
            self._arrival = self._loop.create_future()
            await self._arrival

    def _close(self) -> None:
        def close() -> None:
            self._is_over = True
            self._wake(self._arrival)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(close)  # a lost run is ended by the control thread

    @staticmethod
    def _wake(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)

"""Passes the items of a generator agent to one consumer, across tasks and threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from stoppable._core.boundary import check
from stoppable._core.node import RunNode
from stoppable._core.reason import Reason, ReasonKind
from stoppable._engine import tasks
from stoppable._engine.alarms import Bell, run_in_place
from stoppable._engine.waits import until

T = TypeVar("T")


class Channel(Generic[T]):
    """Queued items of a generator.

    The generator does not wait for its consumer, so that a run whose stream is not read still ends.
    """

    def __init__(self, run: RunNode) -> None:
        self._run = run
        self._items: deque[T] = deque()
        self._is_over = False  # the run has ended
        self._is_complete = False  # the body has ended: there are no more items
        self._bell = Bell()
        run.when_ended(self._close)

    def put(self, item: T) -> None:
        """Put an item into the channel, and report it to the sink."""
        if self._run.sink is not None:
            self._run.sink.event(self._run, "item", {"value": item})
        self._items.append(item)
        self._bell.ring()

    async def read(self, *, until_body: bool = False) -> AsyncIterator[T]:
        """Yield the items until the run has ended, or only its body."""
        while self._items or await self._has_next(until_body, blocking=False):
            yield self._items.popleft()

    def read_blocking(self, *, until_body: bool = False) -> Iterator[T]:
        """Yield the items until the run has ended, or only its body, on a thread."""
        while bool(self._items) or run_in_place(self._has_next(until_body, blocking=True)):
            yield self._items.popleft()

    async def _has_next(self, until_body: bool, *, blocking: bool) -> bool:  # noqa: FBT001
        def has_news() -> bool:
            return bool(self._items) or self._is_over or (until_body and self._is_complete)

        await self._bell.wait(has_news, blocking=blocking)
        return bool(self._items)  # all items are in the queue when it has ended

    def closed_after(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return a blocking body that closes the channel at its end."""

        def feed(*args: Any) -> Any:
            try:
                return body(*args)
            finally:
                self._complete()

        return feed

    def closed_after_async(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return an async body that closes the channel at its end."""

        async def feed(*args: Any) -> Any:
            try:
                return await body(*args)
            finally:
                self._complete()

        return feed

    def _complete(self) -> None:
        self._is_complete = True
        self._bell.ring()

    def _close(self) -> None:
        self._is_over = True
        self._bell.ring()


class LazyChannel(Channel[T]):
    """Makes an async generator lazy: it continues only when its consumer asks for the next item.

    Both are tasks of one event loop, so a future is enough to wake the other.
    """

    def __init__(self, run: RunNode) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrival: asyncio.Future[None] = self._loop.create_future()
        self._demand: asyncio.Future[None] = self._loop.create_future()
        super().__init__(run)

    async def pump(self, function: Callable[..., AsyncGenerator[T, Any]], *args: Any, **kwargs: Any) -> None:
        """Iterate over the generator, as the body of the run, and pass on each item when it is asked for."""
        executing = tasks.current()
        assert executing is not None, "the generator has a separate task"
        executing.reader_left = self._reader_left
        async with contextlib.aclosing(function(*args, **kwargs)) as items:
            async for item in items:
                self._items.append(item)
                _wake(self._arrival)
                await until(self._demand)
                self._demand = self._loop.create_future()

    async def read(self, *, until_body: bool = False) -> AsyncIterator[T]:  # noqa: ARG002 - it ends with the run
        """Yield the items until the run has ended."""
        while True:
            while self._items:
                yield self._items.popleft()
                _wake(self._demand)
            if self._is_over:
                return
            self._arrival = self._loop.create_future()
            await self._arrival

    def _close(self) -> None:
        def close() -> None:
            self._is_over = True
            _wake(self._arrival)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(close)  # a lost run is ended by the control thread

    def _reader_left(self) -> None:
        self._run.stop(reason=Reason.of("the run that read it has ended", kind=ReasonKind.DISCONNECT))


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        with contextlib.suppress(asyncio.InvalidStateError):  # a stop in a signal handler has just done it
            future.set_result(None)


async def pump(
    put: Callable[[T], object], function: Callable[..., AsyncGenerator[T, Any]], *args: Any, **kwargs: Any
) -> None:
    """Iterate over an async generator, as the body of a run. A stop between two items closes it (G11)."""
    async with contextlib.aclosing(function(*args, **kwargs)) as items:
        async for item in items:
            put(item)
            check()


def pump_blocking(
    put: Callable[[T], object], function: Callable[..., Generator[T, Any, Any]], *args: Any, **kwargs: Any
) -> Any:
    """Iterate over a generator on a thread, as ``pump`` does; return its return value."""
    with contextlib.closing(function(*args, **kwargs)) as items:
        while True:
            try:
                item = next(items)
            except StopIteration as end:
                return end.value
            put(item)
            check()

"""Hands what a generator agent yields to one consumer, whatever executes the one and reads for the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from stoppable._core.boundary import check
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.run import Run
from stoppable._engine import tasks
from stoppable._engine.alarms import Bell, run_in_place
from stoppable._engine.waits import until

T = TypeVar("T")


class Channel(Generic[T]):
    """Items on their way.

    The generator runs ahead of its reader, so that a run whose stream nobody reads still ends.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._items: deque[T] = deque()
        self._is_over = False  # with the run
        self._is_complete = False  # with its body: nothing more comes
        self._bell = Bell()
        run._when_ended(self._close)

    def put(self, item: T) -> None:
        """Hand an item over, also to whoever keeps a record of the run."""
        if self._run._sink is not None:
            self._run._sink.event(self._run, "item", {"value": item})
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
        return bool(self._items)  # all of them are there when it is over

    def closed_after(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return a blocking body after which nothing more comes."""

        def feed(*args: Any) -> Any:
            try:
                return body(*args)
            finally:
                self._complete()

        return feed

    def closed_after_async(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return an async body after which nothing more comes."""

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
    """Holds an async generator back until its consumer asks for the next item, as a plain one would be.

    Both are tasks of one event loop, where a future is enough to wake the other, and cheaper than a bell.
    """

    def __init__(self, run: Run) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrival: asyncio.Future[None] = self._loop.create_future()
        self._demand: asyncio.Future[None] = self._loop.create_future()
        super().__init__(run)

    async def pump(self, function: Callable[..., AsyncGenerator[T, Any]], *args: Any, **kwargs: Any) -> None:
        """Be the body of the run: iterate the generator and hand its items over, each when it is asked for."""
        executing = tasks.current()
        assert executing is not None, "in a task of its own"
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
        with contextlib.suppress(asyncio.InvalidStateError):  # a signal handler's stop came in between, and did it
            future.set_result(None)


async def pump(
    put: Callable[[T], object], function: Callable[..., AsyncGenerator[T, Any]], *args: Any, **kwargs: Any
) -> None:
    """Be the body of a run: iterate an async generator. A stop lands between two items: it is closed (G11)."""
    async with contextlib.aclosing(function(*args, **kwargs)) as items:
        async for item in items:
            put(item)
            check()


def pump_blocking(
    put: Callable[[T], object], function: Callable[..., Generator[T, Any, Any]], *args: Any, **kwargs: Any
) -> Any:
    """Be the body of a run on a thread: iterate a generator, as ``pump`` does; return what it returns."""
    with contextlib.closing(function(*args, **kwargs)) as items:
        while True:
            try:
                item = next(items)
            except StopIteration as end:
                return end.value
            put(item)
            check()

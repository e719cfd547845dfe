"""Streams that stop between chunks.

A stream is read in the caller's own task or thread and sets no context variable, so that nothing of it crosses a
``yield``. The run that reads it lists it as in flight from the first read to the end. Code that waits for a chunk is
inside the boundary; between two chunks no code is, so a stream that was left open does not keep its run from ending.

At SIGNAL the wait for a chunk goes on, and the next read raises. INTERRUPT cuts the wait short: a task gets the one
cancel that CANCEL would send; for a thread, the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import weakref
from asyncio import AbstractEventLoop, CancelledError
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from types import AsyncGeneratorType, GeneratorType, TracebackType
from typing import Any, Never, Self, TypeVar, cast, overload

from stoppable._core import context, participants
from stoppable._core.context import RunContext
from stoppable._core.hooks import Callback, Hook, Moment, UserHook
from stoppable._core.node import RunNode
from stoppable._core.shield import shielded
from stoppable._engine.streaming import closing
from stoppable._engine.streaming.chunks import Chunks
from stoppable._engine.streaming.pending import Pending
from stoppable._engine.tasks import TaskParticipant
from stoppable.errors import AgentStopped, InvalidArgument

T = TypeVar("T")

_CLOSING_SECONDS = 5.0


@overload
def stream(iterator: AsyncIterable[T], finish: bool = False) -> AsyncIterator[T]: ...  # noqa: FBT001, FBT002 - a fixed name
@overload
def stream(iterator: Iterable[T], finish: bool = False) -> Iterator[T]: ...  # noqa: FBT001, FBT002
def stream(iterator: Any, finish: bool = False) -> Any:  # noqa: FBT001, FBT002
    """Iterate over a stream, so that a stop ends it between two chunks: it is closed, then AgentStopped is raised.

    What has arrived is kept (G11). ``finish=True`` lets a stream that has begun run to its end, as a plain call does,
    unless INTERRUPT comes first. Leaving early closes the source: with a ``break``, ``close()`` or ``aclose()``, at the
    end of a ``with`` block, or by garbage collection. Outside a run that is all it does.
    """
    if isinstance(iterator, Chunks):  # a guarded stream: it is listed already
        iterator._finish = iterator._finish or finish
        return iterator
    match is_blocking(iterator), is_async(iterator):
        case True, False:
            return BlockingChunks(iterator, finish=finish)
        case False, True:
            return AsyncChunks(iterator, finish=finish)
        case True, True:
            return EitherChunks(iterator, finish=finish)
    hint = "await it first" if inspect.iscoroutine(iterator) else "pass an iterator, sync or async"
    raise InvalidArgument(f"{iterator!r} is not a stream: {hint}")


def is_blocking(source: object) -> bool:
    """Return whether blocking code can iterate over an object."""
    return hasattr(type(source), "__iter__")


def is_async(source: object) -> bool:
    """Return whether async code can iterate over an object."""
    return hasattr(type(source), "__aiter__")


class BlockingChunks(Chunks[T], Iterator[T]):
    """A stream that blocking code reads."""

    __slots__ = ()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._step(self._next)

    def _next(self) -> T:
        if self._over:
            raise StopIteration
        if self._iterator is None:
            self._iterator = self._source if hasattr(self._source, "__next__") else iter(self._source)
        return cast("T", next(self._iterator))

    def _step(self, read: Callable[[], T]) -> T:
        """Read once, as a part of the run; raises AgentStopped if it was stopped."""
        scope = context.current.get()
        if not self._may_step(scope):
            self._stop(scope)
        try:
            return self._read(read)
        except BaseException as error:
            if self._cut and isinstance(error, Exception):  # it ended or failed because INTERRUPT closed it
                self._stop(scope)
            self._read_failed(error)
            raise

    def _read(self, read: Callable[[], T]) -> T:
        self._read_begins()
        try:
            return read()
        finally:
            self._read_ends()

    def _stop(self, scope: RunContext) -> Never:
        self._deliver(scope)
        self._shut()
        self._raise_stopped(scope)

    def _shut(self) -> None:
        if not self._over:
            self._over = True
            try:
                closing.close_all(self._closables())
            finally:
                self._leave_closed()

    def close(self) -> None:
        """Close the source."""
        self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._shut()

    def __del__(self) -> None:
        self._shut()

    def _close_left_open(self) -> None:
        if not self._over:
            self._over = True
            closing.close_elsewhere(self._closables())  # closing may hang
        self._leave_closed()  # also if other code is closing it just now

    def _make_hook(self, run: RunNode) -> Hook:
        # A UserHook, because that is called on a separate thread: closing may hang.
        return UserHook(run, Moment.INTERRUPT, functools.partial(_interrupt, weakref.ref(self)))

    def _interrupt(self) -> None:
        """Close the source from another thread, if that is possible."""
        if self._over or self._is_shielded or isinstance(self._source, GeneratorType):
            return  # a generator is closed by the thread that runs it
        self._cut = True
        with contextlib.suppress(Exception):
            if not closing.shut_down_connection(self._source):
                closing.close_all((self._source,))


class AsyncChunks(Chunks[T], AsyncIterator[T]):
    """A stream that a task reads."""

    __slots__ = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await self._step_async(self._next_async)

    def _next_async(self) -> Awaitable[T]:
        if self._over:
            raise StopAsyncIteration
        if self._iterator is None:
            self._iterator = self._source if hasattr(self._source, "__anext__") else aiter(self._source)
        return cast("Awaitable[T]", self._iterator.__anext__())

    async def _step_async(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read once, as a part of the run; raises AgentStopped if it was stopped."""
        scope = context.current.get()
        self._loop = asyncio._get_running_loop()
        if not self._may_step(scope):
            await self._stop_async(scope)
        try:
            return await self._read_async(scope, read)
        except BaseException as error:
            self._read_failed(error)
            raise

    async def _read_async(self, scope: RunContext, read: Callable[[], Awaitable[T]]) -> T:
        reader = self._read_begins()
        try:
            if not isinstance(reader, TaskParticipant) or not isinstance(scope, RunNode):
                return await read()  # this read cannot be interrupted
            pending = self._pending = Pending(reader, scope)
            try:
                return await read()
            except CancelledError:
                if not pending.take_back():
                    raise
            finally:
                self._pending = None
                pending.take_back()  # our cancel has arrived, whatever the source did with it
        finally:
            self._read_ends()
        self._cut = True
        await self._shut_async()
        raise pending.stopped()

    async def _stop_async(self, scope: RunContext) -> Never:
        self._deliver(scope)
        await self._shut_async()
        try:
            self._raise_stopped(scope)
        except AgentStopped:
            await participants.hold_back()
            raise

    async def _shut_async(self) -> None:
        if not self._over:
            self._over = True
            try:
                with shielded(_CLOSING_SECONDS):  # a CANCEL would leave the connection open
                    await closing.aclose_all(self._closables())
            finally:
                self._leave_closed()

    async def aclose(self) -> None:
        """Close the source."""
        await self._shut_async()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._shut_async()

    def __del__(self) -> None:
        self._close_left_open()

    def _close_left_open(self) -> None:
        loop = self._loop or asyncio._get_running_loop()
        is_open, self._over = not self._over, True
        self._leave_closed()  # also if other code is closing it just now
        if is_open and loop is not None:
            closing.close_soon(loop, self._closables())

    def _make_hook(self, run: RunNode) -> Hook:
        return Callback(run, Moment.INTERRUPT, functools.partial(_interrupt_in, self._loop, weakref.ref(self)))

    def _interrupt(self) -> None:
        """Cut the wait for a chunk short; called on the thread of the loop."""
        if self._over or self._is_shielded:
            return
        if self._pending is not None:
            self._pending.cut()
        elif self._loop is not None and not isinstance(self._source, AsyncGeneratorType):
            # No read is in progress. A generator is left to the task that runs it.
            self._cut = True
            closing.close_soon(self._loop, (self._source,))


class EitherChunks(AsyncChunks[T], BlockingChunks[T]):
    """A stream that can be read both ways; its reader decides."""

    __slots__ = ()

    def _make_hook(self, run: RunNode) -> Hook:
        return (BlockingChunks if self._loop is None else AsyncChunks)._make_hook(self, run)

    def _interrupt(self) -> None:
        (BlockingChunks if self._loop is None else AsyncChunks)._interrupt(self)

    def _close_left_open(self) -> None:
        (BlockingChunks if self._loop is None else AsyncChunks)._close_left_open(self)

    def __del__(self) -> None:
        (BlockingChunks if self._loop is None else AsyncChunks).__del__(self)


# INTERRUPT. The run holds the hook, so the hook must not hold the stream: it would never be garbage-collected.


def _interrupt(ref: weakref.ref[Any]) -> None:
    chunks = ref()
    if chunks is not None:
        chunks._interrupt()


def _interrupt_in(loop: AbstractEventLoop | None, ref: weakref.ref[Any]) -> None:
    if loop is not None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so it reads nothing
            loop.call_soon_threadsafe(_interrupt, ref)

"""Streams that stop between chunks, and the wait for a chunk, which INTERRUPT ends.

A stream is read in the caller's own task or thread and sets no context variable, so that nothing of it crosses a
``yield``. The run that reads it lists it as in flight from the first read to the end. Code that waits for a chunk is
inside the boundary; between two chunks no code is, so a stream that was left open does not keep its run from ending.

At SIGNAL the wait for a chunk goes on, and the next read raises. INTERRUPT cuts the wait short: a task gets the one
cancel that CANCEL would send; for a thread, the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import socket
import sys
import weakref
from asyncio import AbstractEventLoop, CancelledError, Task
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from types import AsyncGeneratorType, GeneratorType, TracebackType
from typing import Any, Generic, Never, Self, TypeVar, cast, overload

from stoppable._core import context, participants
from stoppable._core.boundary import Boundary
from stoppable._core.context import RunContext
from stoppable._core.hooks import Callback, Hook, Moment, UserHook
from stoppable._core.node import RunNode
from stoppable._core.shield import shielded
from stoppable._core.values import Fate, Rung
from stoppable._engine import threads
from stoppable._engine.tasks import TaskParticipant
from stoppable.errors import AgentStopped, InvalidArgument, StoppableError


class PendingRead:
    """A task that waits for a chunk, and the one cancel with which INTERRUPT may end the wait."""

    __slots__ = ("_cancelling", "_issued", "_reader", "_run")

    def __init__(self, reader: TaskParticipant, run: RunNode) -> None:
        self._reader = reader
        self._run = run
        self._cancelling = reader.task.cancelling()
        self._issued = False

    def cut(self) -> None:
        """Cancel the task while it is suspended in the read, so that the cancel arrives there.

        It counts as the CANCEL of the participant, which gets no other before KILL: a second one would break the
        clean-up that this one starts (G7).
        """
        reader = self._reader
        if self._run.first_stop is None or reader._shields:
            return  # the source is in a shield: CANCEL comes after it
        before = reader.own_cancels
        reader._cancel(Rung.CANCEL, self._outermost())
        self._issued = reader.own_cancels > before

    def _outermost(self) -> RunNode:
        """Return the outermost interrupted run of this task: the task unwinds to the end of that run."""
        outermost = self._run
        for run in self._run.lineage():
            if run.rung is None:
                break
            if self._reader in run.participants():
                outermost = run
        return outermost

    def take_back(self) -> bool:
        """Take our cancel back; True if there was one, and no foreign cancel besides (G9)."""
        if not self._issued:
            return False
        self._issued = False
        if self._reader.own_cancels:  # otherwise a run edge inside the source took it back
            self._reader.own_cancels -= 1
            self._reader.task.uncancel()
        others: int = self._reader.task.cancelling() - self._cancelling
        return others <= 0

    def stopped(self) -> AgentStopped:
        """Return the exception for the end of the wait.

        Unlike ``check()``, this does not mark the run as unwinding: no CANCEL can hit this clean-up.
        """
        stop = self._run.first_stop
        assert stop is not None, "only a stopped run is interrupted"
        stopped = AgentStopped(stop.target.id, stop.reason)
        stopped.by_force = True
        return stopped


def close_all(closables: tuple[Any, ...]) -> None:
    """Close each object, even if closing another one raises."""
    with contextlib.ExitStack() as stack:
        for closable in reversed(closables):
            close = getattr(closable, "close", None)
            if close is not None:
                stack.callback(close)


def close_elsewhere(closables: tuple[Any, ...]) -> None:
    """Close objects that are no longer read, on a separate thread."""

    def close() -> None:
        with contextlib.suppress(Exception):  # there is nobody to tell
            close_all(closables)

    with contextlib.suppress(RuntimeError):  # the system cannot start a thread
        threads.pool.submit(close)


async def aclose_all(closables: tuple[Any, ...]) -> None:
    """Close each object in a task, even if another one raises; with ``aclose`` if it exists, else ``close``."""
    async with contextlib.AsyncExitStack() as stack:
        for closable in reversed(closables):
            stack.push_async_callback(_aclose_one, closable)


async def _aclose_one(closable: Any) -> None:
    close = getattr(closable, "aclose", None) or getattr(closable, "close", None)
    if close is not None:
        closing = close()
        if inspect.isawaitable(closing):
            await closing


_closing: set[Task[None]] = set()  # asyncio itself keeps only a weak reference to a task


def close_soon(loop: AbstractEventLoop, closables: tuple[Any, ...]) -> None:
    """Close objects that are no longer read, in a separate task that belongs to no run."""

    def start() -> None:
        task = loop.create_task(aclose_all(closables), context=contextvars.Context())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing can close them
        loop.call_soon_threadsafe(start)


def shut_down_connection(source: Any) -> bool:
    """Shut down the socket of an httpx response, which wakes a thread in ``recv()``; False if there is none.

    Closing the socket would not wake it. An HTTP/2 connection is shared with other requests, so it is left alone.
    https://www.python-httpx.org/advanced/extensions/#network_stream
    """
    response = getattr(source, "response", source)
    extensions = getattr(response, "extensions", None)
    if not isinstance(extensions, Mapping) or extensions.get("http_version") != b"HTTP/1.1":
        return False
    connection = extensions["network_stream"].get_extra_info("socket")
    if connection is None or response.is_closed:
        return False  # a closed response's connection may already serve the next request
    connection.shutdown(socket.SHUT_RDWR)
    return True


T = TypeVar("T")


class Entry(Boundary):
    """The boundary of a stream, or of the call that makes one."""

    __slots__ = ("_ends", "is_cut", "stream")

    stream: weakref.ref[Chunks[Any]] | None
    """The stream that it is the boundary of."""

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name
        self._run = None
        self.stream = None
        self.is_cut = False  # INTERRUPT ended it
        self._ends: list[None] = [None]

    def body_ended(self) -> None:
        """Close a stream that was left open: its reader is gone."""
        stream = None if self.stream is None or self.holder is not None else self.stream()
        if stream is not None:
            stream._close_left_open()

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the boundary, unless it was left; ``error`` says how it ended."""
        # The reader of a stream, the code that closes it and the end of the run may call this at once, on several
        # threads or in a signal handler. Taking the only element out of a list is one step, and needs no lock.
        try:
            self._ends.pop()
        except IndexError:
            return
        self.__exit__(None, error, None)

    def _note_fate(self, run: RunNode, kind: type[BaseException] | None, error: BaseException | None) -> None:
        super()._note_fate(run, kind, error)
        if self.is_cut and run.outcome is None:
            self._fate = Fate.INTERRUPTED


class GuardedEntry(Entry):
    """The boundary of a guarded method; between two chunks its consumer may be busy for a long time."""

    __slots__ = ()

    @property
    def is_idle(self) -> bool:
        """Whether no code waits for a chunk."""
        return self.holder is None


class QuietEntry(GuardedEntry):
    """The boundary of a call that may only make a coroutine; it is reported once it is known to do more."""

    __slots__ = ()

    def _after_publishing(self, run: RunNode, scope: RunContext) -> None:
        self._pass(run, scope)

    def tell(self) -> None:
        """Report that it was entered."""
        if self._run is not None and self._run.sink is not None:
            self._run.sink.entered(self._run, self)

    def withdraw(self) -> None:
        """Leave without a report: nothing has begun."""
        if self._run is not None:
            self._skip()


class Chunks(Generic[T]):
    """The common part of async and blocking streams: the source, and the place in the run that reads it."""

    __slots__ = (
        "__weakref__",
        "_cut",
        "_entry",
        "_finish",
        "_hook",
        "_is_shielded",
        "_iterator",
        "_label",
        "_loop",
        "_over",
        "_pending",
        "_run",
        "_source",
    )

    def __init__(
        self,
        source: Any,
        *,
        finish: bool = False,
        entry: Entry | None = None,
        label: tuple[str, str | None] = ("llm", "stream"),
    ) -> None:
        self._over = False
        self._source = source
        self._finish = finish
        self._iterator: Any = None
        self._run: RunNode | None = None  # the run that reads it
        self._entry = entry
        self._label = label if entry is None else (entry.kind, entry.name)
        self._hook: Hook | None = None
        self._loop: AbstractEventLoop | None = None
        self._pending: PendingRead | None = None  # set while a task waits for a chunk; INTERRUPT may end the wait
        self._is_shielded = False  # its reader is in a shield
        self._cut = False  # INTERRUPT ended it
        if entry is not None:
            self._run = entry._run
            entry.holder = None
            entry.stream = weakref.ref(self)

    # Its place in a run

    def _may_step(self, scope: RunContext) -> bool:
        """Return whether the next chunk may be read; before the first one in a run, enter the gate of the run."""
        if self._cut:
            return False
        if self._over:
            return not scope.closed
        run = scope.run_here()
        has_begun = run is self._run
        if scope.closed and not (self._finish and has_begun and not _is_forced(run)):
            return False
        if not has_begun:
            self._leave()
            if run is not None and not self._enter(scope, run):
                return False
        self._is_shielded = run is not scope
        if self._hook is None and isinstance(scope, RunNode):
            self._hook = self._make_hook(scope)
            scope.add_hook(self._hook)
        return not self._cut

    def _enter(self, scope: RunContext, run: RunNode) -> bool:
        kind, name = self._label
        if not _is_listed(run, kind, participants.engine.join(run)):
            entry = Entry(kind, name)
            if not entry.enter_uncounted(scope):
                return False
            entry.holder = None  # until a read begins
            entry.stream = weakref.ref(self)
            self._entry = entry
        self._run = run
        return True

    def _leave(self, error: BaseException | None = None) -> None:
        """Leave the run; another read would enter a run again."""
        hook, self._hook = self._hook, None
        entry, self._entry = self._entry, None
        self._run = None
        if hook is not None:
            hook.remove()
        if entry is not None:
            entry.is_cut = self._cut
            entry.leave(error)

    def _make_hook(self, run: RunNode) -> Hook:
        raise NotImplementedError

    # One read

    def _read_begins(self) -> participants.Participant | None:
        if self._run is None:
            return None
        reader = participants.engine.join(self._run)
        if self._entry is not None:
            self._entry.holder = reader
        return reader

    def _read_ends(self) -> None:
        if self._entry is not None:
            self._entry.holder = None
        if self._run is not None and self._run.body_end is not None:
            self._run.settle()  # the run may have waited only for this read

    def _read_failed(self, error: BaseException) -> None:
        """Leave the run because a read raised; only StopIteration or StopAsyncIteration ends the stream."""
        if isinstance(error, StopIteration | StopAsyncIteration):
            self._over = True
            self._leave()
        else:
            self._leave(error)

    # Its end

    def _leave_closed(self) -> None:
        """Leave the run because the stream was closed; the error that is being handled, if any, says why."""
        error = GeneratorExit()
        error.__context__ = sys.exception()
        self._leave(error)

    def _close_left_open(self) -> None:
        raise NotImplementedError

    def _closables(self) -> tuple[Any, ...]:
        """Return the objects to close: the iterator, and the source that it was made from."""
        if self._iterator is None or self._iterator is self._source:
            return (self._source,)
        return self._iterator, self._source

    @staticmethod
    def _deliver(scope: RunContext) -> None:
        # Before the clean-up: if closing fails, that is an error while stopping, not a failure of the run (G8).
        run = scope.run_here()
        if run is not None:
            run.deliver(raised=True)

    def _raise_stopped(self, scope: RunContext) -> Never:
        run = scope.run_here()
        if run is not None and run.closed:
            try:
                run.raise_stopped()
            except AgentStopped as stopped:
                stopped.by_force = self._cut
                raise
        raise StoppableError("this stream is closed: the run that read it was stopped")


def _is_forced(run: RunNode | None) -> bool:
    return run is not None and (run.rung is not None or run.outcome is not None)


def _is_listed(run: RunNode, kind: str, reader: participants.Participant | None) -> bool:
    """Return whether the reader is inside a boundary of this kind: then the stream is a part of that effect."""
    open_ = (member for member in list(run.members or ()) if isinstance(member, Boundary))
    return any(other.kind == kind and other.holder is reader for other in open_)


_CLOSING_SECONDS = 5.0


@overload
def stream(
    iterator: AsyncIterable[T],
    finish: bool = ...,  # noqa: FBT001 - a fixed name
    *,
    kind: str = ...,
    name: str | None = ...,
) -> AsyncIterator[T]: ...
@overload
def stream(
    iterator: Iterable[T],
    finish: bool = ...,  # noqa: FBT001
    *,
    kind: str = ...,
    name: str | None = ...,
) -> Iterator[T]: ...
def stream(iterator: Any, finish: bool = False, *, kind: str = "llm", name: str | None = "stream") -> Any:  # noqa: FBT001, FBT002
    """Iterate over a stream, so that a stop ends it between two chunks: it is closed, then AgentStopped is raised.

    What has arrived is kept (G11). ``finish=True`` lets a stream that has begun run to its end, as a plain call does,
    unless INTERRUPT comes first. Leaving early closes the source: with a ``break``, ``close()`` or ``aclose()``, at the
    end of a ``with`` block, or by garbage collection. Outside a run that is all it does.

    It is listed as a boundary of this ``kind`` and ``name``, unless its reader is inside one of the same kind. A stream
    that a guarded method returned keeps those of the guard.
    """
    if isinstance(iterator, Chunks):  # a guarded stream: it is listed already
        iterator._finish = iterator._finish or finish
        return iterator
    match is_blocking(iterator), is_async(iterator):
        case True, False:
            return BlockingChunks(iterator, finish=finish, label=(kind, name))
        case False, True:
            return AsyncChunks(iterator, finish=finish, label=(kind, name))
        case True, True:
            return EitherChunks(iterator, finish=finish, label=(kind, name))
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
                close_all(self._closables())
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
            close_elsewhere(self._closables())  # closing may hang
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
            if not shut_down_connection(self._source):
                close_all((self._source,))


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
            pending = self._pending = PendingRead(reader, scope)
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
            await participants.engine.hold_back()
            raise

    async def _shut_async(self) -> None:
        if not self._over:
            self._over = True
            try:
                with shielded(_CLOSING_SECONDS):  # a CANCEL would leave the connection open
                    await aclose_all(self._closables())
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
            close_soon(loop, self._closables())

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
            close_soon(self._loop, (self._source,))


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

"""Bodies that are driven step by step: generators, and what a ``def`` agent returns."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

from stoppable._core import context
from stoppable._core.boundary import check
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.values import Reason, ReasonKind, Rung, Status
from stoppable._engine import tasks
from stoppable._engine.control import Bell, run_in_place
from stoppable._engine.edge import BlockingEdge, Edge
from stoppable._engine.source_lines import place
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


class Returned(Participant, Coroutine[Any, Any, Any]):
    """The coroutine, as a part of its run; if it is never awaited, it ends with the surrounding run."""

    __slots__ = ("_coroutine", "_inner", "_run", "loop", "task", "thread")

    def __init__(self, edge: BlockingEdge, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._run = edge.run
        self._coroutine = coroutine
        self._inner: Coroutine[Any, Any, Any] | None = None
        self.task, self.loop, self.thread = None, None, Participant.thread
        edge.suspend(self)

    # As a coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begin().__await__()

    def send(self, value: Any) -> Any:
        """Begin or continue the coroutine."""
        return self._begin().send(value)

    def throw(self, *error: Any) -> Any:
        """Continue with an error; if it has not begun, it ends with that, as when its task is cancelled at once."""
        if self._inner is not None:
            return self._inner.throw(*error)
        try:
            return self._coroutine.throw(*error)
        finally:
            self.close()

    def close(self) -> None:
        """End the coroutine, even if it has not begun."""
        if self._inner is not None:
            self._inner.close()
        elif self._run.body_end is None:
            self._coroutine.close()
            self._run.stop(reason=Reason.of("its coroutine was never awaited", kind=ReasonKind.DISCONNECT))
            self._run.deliver(raised=True)
            self._run.end(None, None)

    def __del__(self) -> None:
        if self._inner is None:
            self.close()

    def _begin(self) -> Coroutine[Any, Any, Any]:
        if self._inner is None:
            self._inner = self._go_on()
        return self._inner

    async def _go_on(self) -> Any:
        edge = Edge(self._run)
        edge.resume()
        result, error = None, None
        try:
            if self._run.closed:
                self._coroutine.close()
                self._run.raise_stopped()
            result = await self._coroutine
        except BaseException as caught:
            error = caught
        try:
            await edge.close(result, error)
        finally:
            error = None
        return edge.answer()

    # As a participant, until it is awaited

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Do nothing: no code executes it."""

    def alive(self) -> bool:
        """Return whether it can still begin."""
        return self._inner is None and self._run.body_end is None

    def describe(self) -> str:
        """Name it."""
        return f"coroutine of {self._run.name}, which was never awaited"

    def left_behind(self) -> None:
        """End with the surrounding run."""
        with contextlib.suppress(RuntimeError):  # another task is awaiting it
            self.close()


class Steps(Participant):
    """A generator that is a child run, for a ``yield from``.

    Its code runs in a separate context, like an async generator agent in its task, so that the run does not leak into
    the consumer at a ``yield``. Between two items no code executes it: a stop takes effect when the next item is asked
    for, and closes it. It is a separate kind of participant, so that force against it never hits its consumer (G13).
    """

    __slots__ = ("_context", "_edge", "_generator", "_is_over", "loop", "task", "thread")

    def __init__(self, run: RunNode, generator: Generator[Any, Any, Any]) -> None:
        self._leave_task()
        self._generator = generator
        self._context = contextvars.copy_context()
        self._edge = BlockingEdge(run)
        self._is_over = not self._context.run(self._edge.open, self)

    # As a generator

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._step(self._resume, None)

    def send(self, value: Any) -> Any:
        """Resume it with a value for its ``yield``."""
        return self._step(self._resume, value)

    def throw(self, *error: Any) -> Any:
        """Resume it with an error."""
        return self._step(self._generator.throw, *error)

    def close(self) -> None:
        """End it because its consumer left: a stop of kind ``disconnect``."""
        if self._is_over:
            return
        with contextlib.suppress(GeneratorExit):
            self._context.run(self._take, self._shut)
        outcome = self._edge.run.outcome
        if outcome is not None and outcome.status is Status.FAILED:
            self._edge.answer()  # an error of its clean-up propagates to the consumer, as with any generator

    def _step(self, resume: Callable[..., Any], *args: Any) -> Any:
        if not self._is_over:
            item = self._context.run(self._take, resume, *args)
            if not self._is_over:
                return item
        raise StopIteration(self._edge.answer())

    # In its own context

    def _take(self, resume: Callable[..., Any], *args: Any) -> Any:
        executing = tasks.current()
        if executing is not None:
            self.task, self.loop, self.thread = executing.task, executing.loop, executing.thread
        try:
            return resume(*args)
        except StopIteration as end:
            return self._end(end.value, None)
        except BaseException as error:
            return self._end(None, error)
        finally:
            self._leave_task()

    def _leave_task(self) -> None:
        self.task, self.loop, self.thread = None, None, Participant.thread

    def _resume(self, value: Any) -> Any:
        if context.current.get().closed:
            with contextlib.closing(self._generator):
                check()
        return self._generator.send(value)

    def _shut(self) -> None:
        self._generator.close()
        raise GeneratorExit

    def _end(self, result: Any, error: BaseException | None) -> None:
        self._is_over = True
        self._edge.close(result, error)

    # As a participant

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Do nothing: it is executed by a task or a thread that belongs to another run as well."""

    def alive(self) -> bool:
        """Return whether it can be resumed."""
        return not self._is_over

    def describe(self) -> str:
        """Name it and the line where it is."""
        where = place(tasks.suspended_in(self._generator))
        return f"{where} (generator {self._edge.run.name})" if where else f"generator {self._edge.run.name}"

    def left_behind(self) -> None:
        """End with the surrounding run: a variable or a traceback may keep it alive, but it is no longer read."""
        with contextlib.suppress(Exception):  # its own errors are in its outcome; or another thread is in it just now
            self.close()

"""What adapters share: what is under way in a turn, and events on their way from a task to a reader."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

import stoppable


class Span:
    """Something of a turn that has begun and not ended, such as an agent, a model call or a tool call."""

    __slots__ = ("outer", "waiters")

    def __init__(self, outer: Span | None) -> None:
        self.outer: Span | None = outer
        self.waiters: int = 0
        """How many tasks inside it have noticed the stop and wait for the others."""

    def chain(self) -> Iterator[Self]:
        """Yield it and the spans around it."""
        span: Any = self  # an adapter nests spans of one class
        while span is not None:
            yield span
            span = span.outer


S = TypeVar("S", bound=Span)


class CurrentSpan(Generic[S]):
    """The span that the calling code runs in; each adapter has its own, because frameworks call each other."""

    def __init__(self, name: str) -> None:
        self._variable: contextvars.ContextVar[S | None] = contextvars.ContextVar(name, default=None)

    def get(self) -> S | None:
        """Return the span, or None outside a turn."""
        return self._variable.get()

    @contextlib.contextmanager
    def use(self, span: S | None) -> Iterator[None]:
        """Make a span the current one in the block."""
        token = self._variable.set(span)
        try:
            yield
        finally:
            self._variable.reset(token)


class TurnProgress(Generic[S]):
    """The spans of one turn; they begin and end on any thread, and tasks of one loop wait for them."""

    def __init__(self, current: CurrentSpan[S]) -> None:
        self._current = current
        self._spans: set[S] = set()
        self._loop = asyncio._get_running_loop()  # None in a turn of plain functions, in which no task waits
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_quiet = False

    def add(self, span: S) -> S:
        """Note that a span has begun, and return it."""
        self._spans.add(span)
        return span

    def end(self, span: S) -> None:
        """Note that a span has ended."""
        self._spans.discard(span)
        self._wake()

    @contextlib.contextmanager
    def inside(self, span: S) -> Iterator[S]:
        """Make the block a span of the turn; a generator, whose caller must not see it, uses ``add`` and ``use``."""
        self.add(span)
        try:
            with self._current.use(span):
                yield span
        finally:
            self.end(span)

    @contextlib.contextmanager
    def suspended(self, span: S) -> Iterator[None]:
        """Let a generator yield in the block: while its reader has the item, nothing of it is under way."""
        self.end(span)
        try:
            yield
        finally:
            self.add(span)

    async def check(self, span: S | None) -> None:
        """Raise the stop of the run if there is one, but not while others of the turn finish what they have begun.

        Otherwise one branch that notices the stop would cut the call that another has in flight: task groups, and
        LangGraph, cancel what is beside a branch that raises. A branch that waits here is cancelled with the run when
        its grace is over.
        """
        if not stoppable.should_stop():
            return
        # Frameworks may run async tools on other loops.
        if span is not None and self._loop is not None and self._loop is asyncio._get_running_loop():
            await self._quiet(self._loop, span)
        stoppable.check()

    async def _quiet(self, loop: asyncio.AbstractEventLoop, span: S) -> None:
        chain = list(span.chain())
        for one in chain:
            one.waiters += 1
        self._wake()
        try:
            while not self._is_quiet:
                if all(one.waiters for one in list(self._spans)):  # a copy, because threads change it
                    self._is_quiet = True  # stays set, like the stop: nothing is in flight that could be cut
                    self._wake()
                    return
                await self._wait_for_change(loop)
        finally:
            for one in chain:
                one.waiters -= 1

    async def _wait_for_change(self, loop: asyncio.AbstractEventLoop) -> None:
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _wake(self) -> None:
        loop = self._loop
        if loop is None:
            return
        if loop is not asyncio._get_running_loop():
            # Always, even if no task waits: one may be about to.
            with contextlib.suppress(RuntimeError):  # it was closed
                loop.call_soon_threadsafe(self._wake)
            return
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


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

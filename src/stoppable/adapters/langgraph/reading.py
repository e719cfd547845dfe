"""Streams of graphs as runs, which continue when their consumer asks for more, as in plain LangGraph.

The run has a separate task or thread, because a run cannot span a ``yield``: the consumer would be in the run too.

A node may emit more than the consumer has read: LangGraph queues it. A stop ends the waiting for the consumer. It also
cuts LangGraph off from its queue; what is left there is passed on, so that the consumer gets all that was emitted.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import stoppable
from stoppable.adapters.handover import Handover
from stoppable.adapters.langgraph import names
from stoppable.adapters.langgraph.calls import Call
from stoppable.adapters.langgraph.wrapping import wrap

_END: Any = object()


def wrap_queues() -> None:
    """Wrap the function that takes the chunks of a stream out of LangGraph's queue, once."""
    wrap(names.STREAMING, "_output", _output)


def _output(real: Callable[..., Any]) -> Callable[..., Any]:
    def output(*args: Any, **kwargs: Any) -> Any:
        reading = _current.get()
        # A graph calls it before its first node begins: later calls in the same context are those of graphs below it.
        if reading is not None and reading.take_rest is None:
            reading.take_rest = functools.partial(real, *args, **kwargs)
        return real(*args, **kwargs)

    return output


class _Reading:
    """The run of a stream, and whether its reader is still there."""

    def __init__(self, call: Call, put: Callable[[Any], None]) -> None:
        self.call = call
        self.run: stoppable.Run | None = None
        self.error: BaseException | None = None
        self.take_rest: Callable[[], Iterator[Any]] | None = None
        """Takes the chunks that the graph has emitted and not yielded."""
        self._put = put

    @contextlib.contextmanager
    def passing_on_the_rest(self) -> Iterator[None]:
        """Pass on what a stop in the block kept the graph from yielding."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            if self.run is not None and self.run.token.stopped and self.take_rest is not None:
                for item in self.take_rest():
                    self._put(item)

    def leave(self) -> None:
        """End the run because its consumer left, unless it is already stopping."""
        if self.run is not None and not self.run.token.stopped:
            reason = stoppable.Reason.of("the reader of its stream left", kind=stoppable.ReasonKind.DISCONNECT)
            self.run.stop("immediate", reason)


_current: contextvars.ContextVar[_Reading | None] = contextvars.ContextVar("stoppable-langgraph-reading", default=None)


async def read(call: Call, begin: Callable[[], Any]) -> AsyncIterator[Any]:
    """Yield what a graph streams, as a run in a separate task."""
    items = Handover()
    reading = _Reading(call, items.put)

    async def work() -> None:
        items.release_with_stop()
        with reading.passing_on_the_rest():
            async with contextlib.aclosing(begin()) as stream:
                async for item in stream:
                    items.put(item)
                    await items.until_wanted()

    async def body() -> None:
        try:
            async with call.opened() as reading.run:
                await call.perform(work)
        except BaseException as error:  # every exception reaches the reader once the run has ended
            reading.error = error
        items.end()

    task = asyncio.create_task(body(), name=f"graph {call.name}")
    try:
        async for item in items:
            yield item
    finally:
        if not task.done():
            reading.leave()
            items.release()
            if reading.run is None:
                task.cancel()
            await asyncio.wait([task])
    if reading.error is not None:
        raise reading.error


def read_blocking(call: Call, begin: Callable[[], Any]) -> Iterator[Any]:
    """Yield what a graph streams, as a run on a separate thread."""
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    reading = _Reading(call, items.put)
    wanted = threading.Semaphore(0)
    is_free = threading.Event()

    def release() -> None:
        is_free.set()
        wanted.release()

    def work() -> None:
        stoppable.on_stop(release)
        with reading.passing_on_the_rest(), contextlib.closing(begin()) as stream:
            for item in stream:
                items.put(item)
                if not is_free.is_set():
                    wanted.acquire()

    is_root = stoppable.current_run() is None

    def body() -> None:
        try:
            # A root run has no run on this thread, so the warning about a lost run would be wrong.
            with stoppable.detached() if is_root else contextlib.nullcontext(), call.opened_blocking() as reading.run:
                call.perform_blocking(work)
        except BaseException as error:
            reading.error = error
        items.put(_END)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(body,), name=f"graph {call.name}", daemon=True
    )
    thread.start()
    try:
        while (item := items.get()) is not _END:
            yield item
            wanted.release()
    finally:
        if thread.is_alive():
            reading.leave()
        release()
        thread.join()
    if reading.error is not None:
        raise reading.error

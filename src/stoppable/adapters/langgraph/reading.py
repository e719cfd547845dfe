"""Streams of graphs as runs, which continue when their consumer asks for more, as in plain LangGraph.

The run has a separate task or thread, because a run cannot span a ``yield``: the consumer would be in the run too.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import stoppable
from stoppable.adapters.handover import Handover
from stoppable.adapters.langgraph.calls import Call
from stoppable.adapters.langgraph.unread import passing_on_unread

_END: Any = object()


class _Reading:
    """The run of a stream, and how it ended."""

    def __init__(self) -> None:
        self.run: stoppable.Run | None = None
        self.error: BaseException | None = None

    def leave(self) -> None:
        """End the run because its consumer left, unless it is already stopping."""
        if self.run is not None and not self.run.token.stopped:
            reason = stoppable.Reason.of("the reader of its stream left", kind=stoppable.ReasonKind.DISCONNECT)
            self.run.stop("immediate", reason)


async def read(call: Call, begin: Callable[[], Any]) -> AsyncIterator[Any]:
    """Yield what a graph streams, as a run in a separate task."""
    items = Handover()
    reading = _Reading()

    async def work() -> None:
        items.release_with_stop()
        with passing_on_unread(items.put):
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
    reading = _Reading()
    wanted = threading.Semaphore(0)
    is_free = threading.Event()

    def release() -> None:
        is_free.set()
        wanted.release()

    def work() -> None:
        stoppable.on_stop(release)
        with passing_on_unread(items.put), contextlib.closing(begin()) as stream:
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

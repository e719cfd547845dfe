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
from stoppable.adapters.langgraph.calls import Call

_END: Any = object()


class _Reading:
    """The run of a stream, and whether its reader is still there."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.run: stoppable.Run | None = None
        self.error: BaseException | None = None
        self.is_left = False

    def leave(self) -> None:
        """End the run because its consumer left, unless it is already stopping."""
        self.is_left = True
        if self.run is not None and not self.run.token.stopped:
            reason = stoppable.Reason.of("the reader of its stream left", kind=stoppable.ReasonKind.DISCONNECT)
            self.run.stop("immediate", reason)


async def read(call: Call, begin: Callable[[], Any]) -> AsyncIterator[Any]:
    """Yield what a graph streams, as a run in a separate task."""
    reading = _Reading(call)
    items: asyncio.Queue[Any] = asyncio.Queue()
    wanted = asyncio.Event()

    async def work() -> None:
        async with contextlib.aclosing(begin()) as stream:
            async for item in stream:
                items.put_nowait(item)
                if not reading.is_left:
                    await wanted.wait()
                    wanted.clear()

    async def body() -> None:
        try:
            async with call.opened() as reading.run:
                await call.perform(work)
        except BaseException as error:  # every exception reaches the reader once the run has ended
            reading.error = error
        items.put_nowait(_END)

    task = asyncio.create_task(body(), name=f"graph {call.name}")
    try:
        while (item := await items.get()) is not _END:
            yield item
            wanted.set()
    finally:
        if not task.done():
            reading.leave()
            wanted.set()
            if reading.run is None:
                task.cancel()
            await asyncio.wait([task])
    if reading.error is not None:
        raise reading.error


def read_blocking(call: Call, begin: Callable[[], Any]) -> Iterator[Any]:
    """Yield what a graph streams, as a run on a separate thread."""
    reading = _Reading(call)
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    wanted = threading.Semaphore(0)

    def work() -> None:
        with contextlib.closing(begin()) as stream:
            for item in stream:
                items.put(item)
                if not reading.is_left:
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
        wanted.release()
        thread.join()
    if reading.error is not None:
        raise reading.error

"""Graphs as runs: a call inside a run is a child run; a call of a ``stoppable_graph`` is a run anywhere.

A stream continues when its consumer asks for more, as in plain LangGraph. A node may emit more than the reader of the
stream has taken. LangGraph queues it, and a stop cuts it off from its queue. What is left there is passed on, so that
the reader gets all that was emitted before the stop.

The run of a stream has a separate task or thread, because a run cannot span a ``yield``: the consumer would be in the
run too.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from langgraph.pregel import Pregel
from langgraph.types import Command

import stoppable
from stoppable.adapters._shared import Handover
from stoppable.adapters._upstream import require, wrap
from stoppable.adapters.langgraph import names
from stoppable.adapters.langgraph.boundaries import wrap_models_and_tools, wrap_nodes
from stoppable.adapters.langgraph.sealing import arepair_state, aroll_back, aseal, repair_state, roll_back, seal
from stoppable.adapters.langgraph.turns import (
    DEFAULT,
    GraphSettings,
    GraphSpan,
    GraphTurn,
    current,
    key_of,
    settings_of,
    thread_of,
)

_logger = logging.getLogger("stoppable.adapters.langgraph")


class GraphCall:
    """What a method of a graph was called with."""

    def __init__(self, graph: Any, graph_input: Any, config: Any) -> None:
        outer = current.get() if stoppable.current_run() is not None else None
        inherited = DEFAULT if outer is None else outer.turn.settings.for_subgraph()
        self.settings: GraphSettings = settings_of(graph) or inherited
        self.name: str = self.settings.name or graph.get_name()
        self._is_new_input = graph_input is not None and not isinstance(graph_input, Command)
        self._outer = outer
        own = thread_of(graph, config)
        self._thread = own if outer is None or own.config is not None else outer.thread
        self._owns = self._thread is own and own.config is not None
        self.on_text: Callable[[str], object] | None = None

    # The run

    def open(self) -> contextlib.AbstractAsyncContextManager[stoppable.Run]:
        """Return what makes an async block the run of this call: a child inside a run."""
        settings = self.settings
        if settings.supervisor is None or stoppable.current_run() is not None:
            return stoppable.open_run(self.name, policy=settings.policy)
        return settings.supervisor.open_run(self.name, **self._options())

    def open_blocking(self) -> contextlib.AbstractContextManager[stoppable.Run]:
        """Return the same for a block that is not async."""
        settings = self.settings
        if settings.supervisor is None or stoppable.current_run() is not None:
            return stoppable.open_run(self.name, policy=settings.policy)
        return settings.supervisor.blocking.open_run(self.name, **self._options())

    def _options(self) -> dict[str, Any]:
        config = self._thread.config
        key = None if config is None else key_of(config["configurable"]["thread_id"])
        return {"key": key, "owner": self.settings.owner, "policy": self.settings.policy}

    # What is done in it

    def _span(self) -> GraphSpan:
        """Return the span that the graph runs in."""
        turn = GraphTurn(self.settings, self.on_text) if self._outer is None else self._outer.turn
        return GraphSpan(turn, self._thread, None, self._outer)

    async def perform(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do the work of the call inside its run; repair its thread before, and seal it after a stop."""
        await self._begin()
        try:
            with current.use(self._span()):
                result = await work()
        except BaseException:
            await self._end(has_raised=True)
            raise
        await self._end(has_raised=False)
        return result

    def perform_blocking(self, work: Callable[[], Any]) -> Any:
        """Do the same for work that is not async."""
        self._begin_blocking()
        try:
            with current.use(self._span()):
                result = work()
        except BaseException:
            self._end_blocking(has_raised=True)
            raise
        self._end_blocking(has_raised=False)
        return result

    # The thread

    async def _begin(self) -> None:
        if not self._owns or self.settings.on_stop == "leave":
            return
        graph, config = self._thread.graph, self._thread.config
        if self._is_new_input:  # without input, the caller continues the thread where it is
            await arepair_state(graph, config, None)
        self._note_begin(await graph.aget_state(config))

    def _begin_blocking(self) -> None:
        if not self._owns or self.settings.on_stop == "leave":
            return
        graph, config = self._thread.graph, self._thread.config
        if self._is_new_input:
            repair_state(graph, config, None)
        self._note_begin(graph.get_state(config))

    def _note_begin(self, state: Any) -> None:
        thread = self._thread
        thread.began_at = state.config["configurable"].get("checkpoint_id")
        thread.had_interrupts = any(task.interrupts for task in state.tasks)
        if self._outer is not None:
            self._outer.thread.below.append(thread)

    async def _end(self, *, has_raised: bool) -> None:
        if self._is_stopped(has_raised=has_raised):
            with stoppable.shielded(self.settings.seal_seconds), stoppable.detached():
                try:
                    await (aroll_back if self.settings.on_stop == "rollback" else aseal)(self._thread)
                except Exception as error:
                    self._log_failure(error)

    def _end_blocking(self, *, has_raised: bool) -> None:
        if self._is_stopped(has_raised=has_raised):
            with stoppable.shielded(self.settings.seal_seconds), stoppable.detached():
                try:
                    (roll_back if self.settings.on_stop == "rollback" else seal)(self._thread)
                except Exception as error:
                    self._log_failure(error)

    def _is_stopped(self, *, has_raised: bool) -> bool:
        """Return whether a stop ended the call; one that came too late leaves the thread as the graph left it."""
        run = stoppable.current_run()
        if not self._owns or run is None or not run.token.stopped or self.settings.on_stop == "leave":
            return False
        return has_raised or run.delivered_at is not None

    def _log_failure(self, error: Exception) -> None:
        # The caller still gets the outcome; the next turn repairs the thread, or says why it cannot.
        _logger.error("the thread of a stopped run of %s could not be sealed", self.name, exc_info=error)


class _StreamQueue:
    """The queue of the stream that is read in a context."""

    def __init__(self) -> None:
        self.take: Callable[[], Iterator[Any]] | None = None
        """Takes out what is in it, in the form that the reader asked for; None until the stream has begun."""


_current_queue: contextvars.ContextVar[_StreamQueue | None] = contextvars.ContextVar(
    "stoppable-langgraph-queue", default=None
)


def wrap_queues() -> None:
    """Wrap the function that takes the chunks of a stream out of LangGraph's queue, once."""
    wrap(names.STREAMING, "_output", _output)


def _output(real: Callable[..., Any]) -> Callable[..., Any]:
    def output(*args: Any, **kwargs: Any) -> Any:
        queue = _current_queue.get()
        # A graph calls it before its first node begins: later calls in the same context are those of graphs below it.
        if queue is not None and queue.take is None:
            queue.take = functools.partial(real, *args, **kwargs)
        return real(*args, **kwargs)

    return output


@contextlib.contextmanager
def passing_on_unread(put: Callable[[Any], object]) -> Iterator[None]:
    """Pass on, when the block is over, what a stop kept the graph that is streamed in it from yielding."""
    queue = _StreamQueue()
    token = _current_queue.set(queue)
    try:
        yield
    finally:
        _current_queue.reset(token)
        run = stoppable.current_run()
        if run is not None and run.token.stopped and queue.take is not None:
            with contextlib.suppress(Exception):  # one that cannot be given its form must not hide the stop
                for item in queue.take():
                    put(item)


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


async def read(call: GraphCall, begin: Callable[[], Any]) -> AsyncIterator[Any]:
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
            async with call.open() as reading.run:
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


def read_blocking(call: GraphCall, begin: Callable[[], Any]) -> Iterator[Any]:
    """Yield what a graph streams, as a run on a separate thread."""
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    reading = _Reading()
    requests = threading.Semaphore(0)
    is_free = threading.Event()

    def release() -> None:
        is_free.set()
        requests.release()

    def work() -> None:
        stoppable.on_stop(release)
        with passing_on_unread(items.put), contextlib.closing(begin()) as stream:
            for item in stream:
                items.put(item)
                if not is_free.is_set():
                    requests.acquire()

    is_root = stoppable.current_run() is None

    def body() -> None:
        try:
            # A root run has no run on this thread, so the warning about a lost run would be wrong.
            with stoppable.detached() if is_root else contextlib.nullcontext(), call.open_blocking() as reading.run:
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
            requests.release()
    finally:
        if thread.is_alive():
            reading.leave()
        release()
        thread.join()
    if reading.error is not None:
        raise reading.error


def instrument() -> None:
    """Let the stop of a run reach every graph that is called in it, with everything below; patches once per process.

    Graphs are child runs, and nodes, chat models and tools are boundaries. Threads and processes that they start belong
    to their run, as with ``stoppable.instrument()``. Outside a run they work as before.
    """
    require("langgraph", names.missing())
    stoppable.instrument()
    wrap(Pregel, "invoke", _invoke)
    wrap(Pregel, "ainvoke", _ainvoke)
    wrap(Pregel, "stream", _stream)
    wrap(Pregel, "astream", _astream)
    wrap_queues()
    wrap_nodes()
    wrap_models_and_tools()


_part_of: contextvars.ContextVar[Any] = contextvars.ContextVar("stoppable-langgraph-call", default=None)
"""The graph whose call is already a run, while another of its methods does the work."""


@contextlib.contextmanager
def as_part_of(graph: Any) -> Iterator[None]:
    """Let the next call of a graph be part of the current run."""
    token = _part_of.set(graph)
    try:
        yield
    finally:
        _part_of.reset(token)


def _is_plain(graph: Any) -> bool:
    if _part_of.get() is graph:
        _part_of.set(None)  # a graph that calls itself is a run again
        return True
    return stoppable.current_run() is None and settings_of(graph) is None


def _invoke(real: Callable[..., Any]) -> Callable[..., Any]:
    def invoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
        if _is_plain(self):
            return real(self, input, config, **kwargs)

        def work() -> Any:
            with as_part_of(self):
                return real(self, input, config, **kwargs)

        call = GraphCall(self, input, config)
        with call.open_blocking():
            return call.perform_blocking(work)

    return invoke


def _ainvoke(real: Callable[..., Any]) -> Callable[..., Any]:
    async def ainvoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
        if _is_plain(self):
            return await real(self, input, config, **kwargs)

        async def work() -> Any:
            with as_part_of(self):
                return await real(self, input, config, **kwargs)

        call = GraphCall(self, input, config)
        async with call.open():
            return await call.perform(work)

    return ainvoke


def _stream(real: Callable[..., Any]) -> Callable[..., Any]:
    def stream(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002
        if _is_plain(self):
            return real(self, input, config, **kwargs)  # type: ignore[no-any-return]
        return read_blocking(GraphCall(self, input, config), lambda: real(self, input, config, **kwargs))

    return stream


def _astream(real: Callable[..., Any]) -> Callable[..., Any]:
    def astream(self: Any, input: Any, config: Any = None, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: A002
        if _is_plain(self):
            return real(self, input, config, **kwargs)  # type: ignore[no-any-return]
        return read(GraphCall(self, input, config), lambda: real(self, input, config, **kwargs))

    return astream

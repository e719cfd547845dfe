"""What a graph has emitted and not yielded when it is stopped.

A node may emit more than the reader of the stream has taken. LangGraph queues it, and a stop cuts it off from its
queue. What is left there is passed on, so that the reader gets all that was emitted before the stop.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import stoppable
from stoppable.adapters.langgraph import names
from stoppable.adapters.langgraph.wrapping import wrap


class _Queue:
    """The queue of the stream that is read in a context."""

    def __init__(self) -> None:
        self.take: Callable[[], Iterator[Any]] | None = None
        """Takes out what is in it, in the form that the reader asked for; None until the stream has begun."""


_current: contextvars.ContextVar[_Queue | None] = contextvars.ContextVar("stoppable-langgraph-queue", default=None)


def wrap_queues() -> None:
    """Wrap the function that takes the chunks of a stream out of LangGraph's queue, once."""
    wrap(names.STREAMING, "_output", _output)


def _output(real: Callable[..., Any]) -> Callable[..., Any]:
    def output(*args: Any, **kwargs: Any) -> Any:
        queue = _current.get()
        # A graph calls it before its first node begins: later calls in the same context are those of graphs below it.
        if queue is not None and queue.take is None:
            queue.take = functools.partial(real, *args, **kwargs)
        return real(*args, **kwargs)

    return output


@contextlib.contextmanager
def passing_on_unread(put: Callable[[Any], object]) -> Iterator[None]:
    """Pass on, when the block is over, what a stop kept the graph that is streamed in it from yielding."""
    queue = _Queue()
    token = _current.set(queue)
    try:
        yield
    finally:
        _current.reset(token)
        run = stoppable.current_run()
        if run is not None and run.token.stopped and queue.take is not None:
            with contextlib.suppress(Exception):  # one that cannot be given its form must not hide the stop
                for item in queue.take():
                    put(item)

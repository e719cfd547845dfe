"""Graphs as runs: a call inside a run is a child run; a call of a ``stoppable_graph`` is a run anywhere."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langgraph.pregel import Pregel

import stoppable
from stoppable.adapters.langgraph import names
from stoppable.adapters.langgraph.calls import Call
from stoppable.adapters.langgraph.models import wrap_models_and_tools
from stoppable.adapters.langgraph.nodes import wrap_nodes
from stoppable.adapters.langgraph.reading import read, read_blocking
from stoppable.adapters.langgraph.settings import settings_of
from stoppable.adapters.langgraph.unread import wrap_queues
from stoppable.adapters.langgraph.wrapping import wrap


def instrument() -> None:
    """Let the stop of a run reach every graph that is called in it, with everything below; patches once per process.

    Graphs are child runs, and nodes, chat models and tools are boundaries. Threads and processes that they start belong
    to their run, as with ``stoppable.instrument()``. Outside a run they work as before.
    """
    if lacking := names.missing():
        raise RuntimeError(f"this version of langgraph is not supported: it lacks {', '.join(lacking)}")
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

        call = Call(self, input, config)
        with call.opened_blocking():
            return call.perform_blocking(work)

    return invoke


def _ainvoke(real: Callable[..., Any]) -> Callable[..., Any]:
    async def ainvoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:  # noqa: A002
        if _is_plain(self):
            return await real(self, input, config, **kwargs)

        async def work() -> Any:
            with as_part_of(self):
                return await real(self, input, config, **kwargs)

        call = Call(self, input, config)
        async with call.opened():
            return await call.perform(work)

    return ainvoke


def _stream(real: Callable[..., Any]) -> Callable[..., Any]:
    def stream(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002
        if _is_plain(self):
            return real(self, input, config, **kwargs)  # type: ignore[no-any-return]
        return read_blocking(Call(self, input, config), lambda: real(self, input, config, **kwargs))

    return stream


def _astream(real: Callable[..., Any]) -> Callable[..., Any]:
    def astream(self: Any, input: Any, config: Any = None, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: A002
        if _is_plain(self):
            return real(self, input, config, **kwargs)  # type: ignore[no-any-return]
        return read(Call(self, input, config), lambda: real(self, input, config, **kwargs))

    return astream

"""Calls of ``agent.run``: every way to run an agent ends there, those of its team included."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator
from typing import Any

from smolagents import MultiStepAgent, ToolCallingAgent

import stoppable
from stoppable.adapters._upstream import require, wrap
from stoppable.adapters.smolagents import boundaries, names
from stoppable.adapters.smolagents.turns import AgentTurn, current, inside
from stoppable.errors import StoppableError


def install() -> None:
    """Let the stop of a run reach every agent that is called in it; once per process.

    Model calls, tools, members of a team and the code of a CodeAgent are boundaries. Threads and processes that they
    start belong to their run, as with ``stoppable.instrument()``. Outside a run they work as before.
    """
    require("smolagents", names.missing())
    stoppable.instrument()
    boundaries.replace_waits()
    wrap(MultiStepAgent, "run", _run)
    wrap(MultiStepAgent, "_run_stream", _run_stream)
    wrap(ToolCallingAgent, "execute_tool_call", boundaries.execute_tool_call)


_Items = Generator[Any, None, Any]

_last: weakref.WeakKeyDictionary[Any, weakref.ref[_Reader]] = weakref.WeakKeyDictionary()
"""The last turn of each agent, as long as somebody has its generator."""


class _Reader:
    """The generator of a turn, in the frame of that generator: its owner decides how long it lives."""

    __slots__ = ("__weakref__", "items", "turn")

    def __init__(self, turn: AgentTurn) -> None:
        self.turn = turn
        self.items: weakref.ref[_Items] | None = None

    def end(self) -> None:
        """End a turn whose run was stopped while nobody was reading it."""
        items = None if self.items is None else self.items()
        if items is not None and self.turn.run.token.stopped:
            with contextlib.suppress(ValueError):  # another thread is reading it
                items.close()


def _run(real: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (last := _last.pop(self, None)) is not None and (reader := last()) is not None:
            reader.end()
        caller = stoppable.current_run()
        if caller is None:
            with inside(None):
                return real(self, *args, **kwargs)
        stoppable.check()
        boundaries.guard_model(self.model)
        boundaries.guard_tools(self)
        if hasattr(self, "python_executor"):
            boundaries.guard_executor(self.python_executor)
        outer = current.get()
        with inside(AgentTurn(self, caller, is_below=outer is not None and outer.run == caller)):
            return real(self, *args, **kwargs)

    return run


def _run_stream(real: Callable[..., Any]) -> Callable[..., Any]:
    def run_stream(self: Any, *args: Any, **kwargs: Any) -> _Items:
        turn = current.get()
        items: _Items = real(self, *args, **kwargs)
        if turn is None:
            return items
        reader = _Reader(turn)
        read = _read(reader, items)
        reader.items = weakref.ref(read)
        _last[self] = weakref.ref(reader)
        return read

    return run_stream


def _read(reader: _Reader, items: _Items) -> _Items:
    """Yield what an agent yields; its turn is the current one only while the agent executes."""
    turn = reader.turn
    try:
        while True:
            if turn.run.token.stopped and stoppable.current_run() is not turn.run:
                stoppable.check()
                raise StoppableError("this agent has ended: the run that called it was stopped")
            with inside(turn):
                try:
                    item = next(items)
                except StopIteration as end:
                    return end.value
                turn.note(item)
            yield item
    except BaseException:
        with inside(turn):
            turn.leave(items)
        raise

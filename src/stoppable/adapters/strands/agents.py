"""Agents, graphs and swarms that are called in a run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from strands import Agent
from strands.multiagent import Swarm
from strands.multiagent.graph import Graph

import stoppable
from stoppable import Run
from stoppable.adapters._upstream import require, wrap
from stoppable.adapters.strands import names
from stoppable.adapters.strands.boundaries import prepare
from stoppable.adapters.strands.streams import read_in_task
from stoppable.adapters.strands.turns import AgentTurn, current


def install() -> None:
    """Let the stop of a run reach every agent, graph and swarm that is called in it; once per process, at any time.

    Model calls and tools are boundaries. Threads and processes that they start belong to their run, as with
    ``stoppable.instrument()``. Outside a run they work as before.
    """
    require("strands-agents", names.missing())
    stoppable.instrument()
    wrap(Agent, "stream_async", _stream_agent)
    wrap(Graph, "stream_async", _stream_nodes)
    wrap(Swarm, "stream_async", _stream_nodes)


def _stream_agent(real: Callable[..., Any]) -> Callable[..., Any]:
    def stream_async(self: Any, prompt: Any = None, **options: Any) -> AsyncIterator[Any]:
        run = stoppable.current_run()
        if run is None:
            events: AsyncIterator[Any] = real(self, prompt, **options)
            return events
        prepare(self)
        turn = AgentTurn(self, run)
        if options.get("cancel_signal") is None:
            options["cancel_signal"] = turn.cancel_signal
        return read_in_task(run, f"agent {self.name}", lambda: _invoke(turn, real(self, prompt, **options)))

    return stream_async


async def _invoke(turn: AgentTurn, events: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield the events of an invocation, and complete the messages of its agent if a stop ends it."""
    current.set(turn)  # in the context of its task
    interrupt = stoppable.on_interrupt(turn.cancel_signal.set)
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                yield event
    except BaseException:
        await turn.seal_messages()
        raise
    finally:
        interrupt.remove()


def _stream_nodes(real: Callable[..., Any]) -> Callable[..., Any]:
    def stream_async(self: Any, task: Any, invocation_state: Any = None, **options: Any) -> AsyncIterator[Any]:
        run = stoppable.current_run()
        events = real(self, task, invocation_state, **options)
        return events if run is None else _check_result(run, events)

    return stream_async


async def _check_result(run: Run, events: Any) -> AsyncIterator[Any]:
    """Yield the events of a graph or swarm, but no result of one in which the stop has ended an agent.

    A graph takes no notice of an agent that ends so, and would be complete without it.
    """
    stoppable.check()
    async with contextlib.aclosing(events):
        async for event in events:
            if "result" in event and run.delivered_at is not None:
                stoppable.check()
            yield event

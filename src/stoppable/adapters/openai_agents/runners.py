"""The runner of the SDK: every way to run an agent ends in its two methods, sub-agents and handoffs included."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from agents.run import AgentRunner

import stoppable
from stoppable.adapters._upstream import require
from stoppable.adapters.openai_agents import names
from stoppable.adapters.openai_agents.boundaries import guard_models
from stoppable.adapters.openai_agents.hooks import Hooks
from stoppable.adapters.openai_agents.turns import AgentTurn, current


def install() -> None:
    """Let the stop of a run reach every agent that is run in it; once per process, at any time.

    It calls ``stoppable.instrument()``, so that tools on threads take part.
    """
    require("openai-agents", names.missing())
    stoppable.instrument()
    guard_models()
    if not hasattr(AgentRunner.run, "__wrapped__"):
        AgentRunner.run = _run(AgentRunner.run)
        AgentRunner.run_streamed = _run_streamed(AgentRunner.run_streamed)


def _run(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    async def run(self: Any, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        if stoppable.current_run() is None:
            return await plain(self, starting_agent, input, **options)
        turn = AgentTurn(options.get("session"))
        token = current.set(turn)
        try:
            async with stoppable.open_run(str(starting_agent.name)):
                try:
                    return await plain(self, starting_agent, input, **_with_hooks(options, turn))
                except BaseException:
                    await turn.seal_session()
                    raise
        finally:
            current.reset(token)

    return run


def _run_streamed(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def run_streamed(self: Any, starting_agent: Any, input: Any, **options: Any) -> Any:  # noqa: A002
        if stoppable.current_run() is None:
            return plain(self, starting_agent, input, **options)
        turn = AgentTurn(options.get("session"))
        token = current.set(turn)  # the SDK starts a task, which copies the context
        try:
            result = plain(self, starting_agent, input, **_with_hooks(options, turn))
        finally:
            current.reset(token)
        result.stream_events = functools.partial(_events, result.stream_events, turn)
        return result

    return run_streamed


async def _events(plain: Callable[[], Any], turn: AgentTurn) -> AsyncIterator[Any]:
    try:
        async for event in plain():
            yield event
    except BaseException:
        await turn.seal_session()
        raise


def _with_hooks(options: dict[str, Any], turn: AgentTurn) -> dict[str, Any]:
    return {**options, "hooks": Hooks(options.get("hooks"), turn)}

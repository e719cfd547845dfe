"""Agents, graphs and swarms as agents of stoppable, for `stoppable serve`, `run` and `check`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from strands import Agent
from strands.multiagent import MultiAgentBase
from strands.multiagent.graph import Graph

import stoppable
from stoppable.adapters.strands import names
from stoppable.adapters.strands.agents import install


def as_agent(value: Any, name: str | None = None) -> Callable[..., Any]:
    """Return an agent ``(message, session_id=None)`` whose result is the answer; its partial is the text so far.

    Messages with the same session id are turns of one conversation, apart for each owner of runs. An agent of Strands
    has one conversation at a time, so turns of different ones wait for each other. With a function that takes a
    session id and returns an agent, they do not: each conversation has its own. A graph or swarm has the parameter
    ``message`` only, and its result is the text of each node.
    """
    install()
    if isinstance(value, MultiAgentBase):
        agent = _nodes(value)
    else:
        agent = _conversation(_OneAgent(value) if isinstance(value, Agent) else _AgentPerSession(value))
    own_name = str(getattr(value, "name", None) or getattr(value, "__name__", None) or type(value).__name__)
    agent.__name__ = agent.__qualname__ = name or own_name
    agent.__doc__ = f"The agent {own_name}."
    return stoppable.agent(agent)


def _conversation(sessions: _OneAgent | _AgentPerSession) -> Callable[..., Any]:
    async def answer(message: str, session_id: str | None = None) -> Any:
        run = stoppable.current_run()
        key = None if session_id is None else (None if run is None else run.owner, session_id)
        async with sessions.use(key) as agent:
            result = await agent.invoke_async(message)
        return _plain(result)

    return answer


def _nodes(value: Any) -> Callable[..., Any]:
    lock = asyncio.Lock()

    async def answer(message: str) -> dict[str, Any]:
        async with lock:
            if isinstance(value, Graph):  # a swarm does it itself
                for node in value.nodes.values():
                    node.reset_executor_state()  # nobody sees what others have said
            result = await value.invoke_async(message)
        if result.status.value == "failed":
            raise RuntimeError(f"{type(value).__name__} failed: {result.results}")
        return {
            node_id: "\n".join(str(each).rstrip("\n") for each in node.get_agent_results())
            for node_id, node in result.results.items()
        }

    return answer


_Key = tuple[str | None, str]


class _OneAgent:
    """One agent, which takes on one conversation after the other."""

    def __init__(self, agent: Agent) -> None:
        if names.saves_its_session(agent):
            raise ValueError(
                f"the agent {agent.name!r} has a session manager, which keeps one conversation: give as_agent() a "
                "function that makes an agent for a session id"
            )
        self._agent = agent
        self._lock = asyncio.Lock()
        self._empty = self._snapshot()
        self._conversations: dict[_Key, Any] = {}

    @contextlib.asynccontextmanager
    async def use(self, key: _Key | None) -> AsyncIterator[Agent]:
        async with self._lock:
            self._agent.load_snapshot(self._empty if key is None else self._conversations.get(key, self._empty))
            try:
                yield self._agent
            finally:
                if key is not None:
                    self._conversations[key] = self._snapshot()

    def _snapshot(self) -> Any:
        return self._agent.take_snapshot(preset="session", include=["model_state"])


class _AgentPerSession:
    """An agent for each conversation."""

    def __init__(self, make: Callable[[str | None], Agent]) -> None:
        self._make = make
        self._agent_for = functools.cache(lambda key: make(key[1]))

    @contextlib.asynccontextmanager
    async def use(self, key: _Key | None) -> AsyncIterator[Agent]:
        yield self._make(None) if key is None else self._agent_for(key)


def _plain(result: Any) -> Any:
    """Return an answer as plain JSON."""
    if result.structured_output is not None:
        return result.structured_output.model_dump(mode="json")
    return str(result).rstrip("\n")

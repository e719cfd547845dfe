"""Agents of smolagents as agents of stoppable, for `stoppable serve`, `run` and `check`."""

from __future__ import annotations

import copy
import functools
import json
import threading
from collections.abc import Callable
from typing import Any

from smolagents import AgentMemory, LocalPythonExecutor, MultiStepAgent

import stoppable
from stoppable.adapters.smolagents.runs import install

_LOOK_SECONDS = 0.05


def as_agent(value: Any, name: str | None = None, *, memory: Callable[[str], Any] | None = None) -> Callable[..., Any]:
    """Return an agent ``(message, session_id=None)`` whose result is the final answer; its partial is the text so far.

    Messages with the same session id are turns of one conversation, one after the other. ``memory`` makes the memory
    of smolagents for an id; by default memories are kept in this process, apart for each owner of runs.
    """
    install()
    agent: MultiStepAgent = value
    conversations = _Conversations(agent, memory)

    def answer(message: str, session_id: str | None = None) -> Any:
        conversation = conversations.get(session_id)
        conversation.begin()
        try:
            return _plain(conversation.agent.run(message, reset=False, return_full_result=False))
        finally:
            conversation.end()

    own_name = agent.name or type(agent).__name__
    answer.__name__ = answer.__qualname__ = name or own_name
    answer.__doc__ = f"The agent {own_name}."
    return stoppable.agent(answer)


class _Conversation:
    """A copy of an agent, because smolagents keeps what was said in the agent; one turn at a time."""

    def __init__(self, agent: MultiStepAgent, memory: Callable[[], Any] | None = None) -> None:
        self.agent = agent
        self._memory = memory
        self._turn = threading.Lock()

    def begin(self) -> None:
        """Wait until the turn before has ended; a stop ends the wait."""
        while not self._turn.acquire(timeout=_LOOK_SECONDS):
            stoppable.check()
        if self._memory is not None:
            self.agent.memory = self._memory()

    def end(self) -> None:
        """End the turn."""
        self._turn.release()


class _Conversations:
    """The conversations of this process; the same id of two owners means two conversations."""

    def __init__(self, agent: MultiStepAgent, memory: Callable[[str], Any] | None) -> None:
        self._agent = agent
        self._memory = memory
        self._lock = threading.Lock()
        self._kept: dict[tuple[str | None, str], _Conversation] = {}

    def get(self, session_id: str | None) -> _Conversation:
        if session_id is None:
            return _Conversation(_copy(self._agent))
        run = stoppable.current_run()
        key = (None if run is None else run.owner, session_id)
        with self._lock:
            if key not in self._kept:
                memory = None if self._memory is None else functools.partial(self._memory, session_id)
                self._kept[key] = _Conversation(_copy(self._agent), memory)
            return self._kept[key]


def _copy(agent: MultiStepAgent) -> MultiStepAgent:
    """Return an agent with the same model and tools, whose memory, variables and team are its own."""
    own = copy.copy(agent)
    own.memory = AgentMemory(agent.system_prompt)
    own.state = dict(agent.state)
    own.managed_agents = {
        name: _copy(member) if isinstance(member, MultiStepAgent) else member
        for name, member in agent.managed_agents.items()
    }
    executor = getattr(agent, "python_executor", None)
    if executor is not None and isinstance(executor, LocalPythonExecutor):
        own.python_executor = copy.copy(executor)
        own.python_executor.state = dict(executor.state)
        own.python_executor.custom_tools = dict(executor.custom_tools)
    return own


def _plain(value: Any) -> Any:
    """Return an answer as plain JSON; an image or a sound as the path of its file."""
    if hasattr(value, "to_string"):
        value = value.to_string()
    return json.loads(json.dumps(value, default=str))

"""Agents and workflows of LlamaIndex as agents of stoppable, for `stoppable serve`, `run` and `check`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.memory import ChatMemoryBuffer
from pydantic import TypeAdapter

import stoppable
from stoppable.adapters.llama_index.workflows import install


def as_agent(value: Any, name: str | None = None, *, memory: Callable[[str], Any] | None = None) -> Callable[..., Any]:
    """Return an agent ``(message, session_id=None)`` whose result is the answer; its partial is the text so far.

    Messages with the same session id are turns of one conversation. ``memory`` makes LlamaIndex's memory for an id;
    by default memories are kept in this process, apart for each owner of runs. The parameters of a workflow that is no
    agent are those of its start event, and it returns its result as plain JSON.
    """
    install()
    if isinstance(value, BaseWorkflowAgent | AgentWorkflow):
        agent = _conversation(value, _Memories() if memory is None else memory)
    else:
        agent = _workflow(value)
    own_name = value.name if isinstance(value, BaseWorkflowAgent) else type(value).__name__
    agent.__name__ = agent.__qualname__ = name or own_name
    agent.__doc__ = f"The agent {own_name}."
    return stoppable.agent(agent)


def _conversation(value: Any, memory: Callable[[str], Any]) -> Callable[..., Any]:
    async def answer(message: str, session_id: str | None = None) -> Any:
        output = await value.run(user_msg=message, memory=None if session_id is None else memory(session_id))
        return str(output) if output.structured_response is None else _plain(output.structured_response)

    return answer


def _workflow(value: Any) -> Callable[..., Any]:
    async def perform(**start: Any) -> Any:
        return _plain(await value.run(**start))

    return perform


class _Memories:
    """Memories of this process; the same id of two owners means two memories."""

    def __init__(self) -> None:
        self._make = functools.cache(lambda _owner, _session_id: ChatMemoryBuffer.from_defaults())

    def __call__(self, session_id: str) -> Any:
        run = stoppable.current_run()
        return self._make(None if run is None else run.owner, session_id)


def _plain(value: Any) -> Any:
    """Return a result as plain JSON."""
    return TypeAdapter(Any).dump_python(value, mode="json", fallback=str)

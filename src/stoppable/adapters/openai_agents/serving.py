"""Agents of the SDK as agents of stoppable, for `stoppable serve`, `run` and `check`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from agents import Agent, Runner, SQLiteSession

import stoppable
from stoppable.adapters.openai_agents.runners import install


def as_agent(value: Any, name: str | None = None, *, session: Callable[[str], Any] | None = None) -> Callable[..., Any]:
    """Return an agent ``(message, session_id=None)`` whose result is the final output; its partial is the text so far.

    Messages with the same session id are turns of one conversation. ``session`` makes the session of the SDK for an id;
    by default sessions are kept in memory, apart for each owner of runs.
    """
    install()
    agent: Agent[Any] = value
    sessions = _Sessions() if session is None else session

    async def answer(message: str, session_id: str | None = None) -> Any:
        conversation = None if session_id is None else sessions(session_id)
        result = Runner.run_streamed(agent, message, session=conversation)
        async for _ in result.stream_events():
            pass
        return _plain(result.final_output)

    answer.__name__ = answer.__qualname__ = name or str(agent.name)
    answer.__doc__ = f"The agent {agent.name}."
    return stoppable.agent(answer)


class _Sessions:
    """Sessions of this process; the same id of two owners means two sessions."""

    def __init__(self) -> None:
        self._make = functools.cache(lambda _owner, session_id: SQLiteSession(session_id))

    def __call__(self, session_id: str) -> Any:
        run = stoppable.current_run()
        return self._make(None if run is None else run.owner, session_id)


def _plain(value: Any) -> Any:
    """Return an output as plain JSON: an output type may be a model of pydantic."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value

"""Agents of Agent Framework as agents of stoppable, for ``stoppable serve``, ``run`` and ``check``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_framework import Agent, AgentSession

import stoppable
from stoppable.adapters.agent_framework.middleware import Stoppable


def as_agent(agent: Agent[Any], name: str | None = None) -> Callable[..., Any]:
    """Return an agent with the parameters ``message`` and ``session_id``, whose result is the text of the answer.

    What its models say is the partial of the run. The sessions are kept in this process, for each owner separately.
    """
    sessions: dict[tuple[str | None, str], AgentSession] = {}

    async def body(message: str, session_id: str | None = None) -> str:
        run = stoppable.current_run()
        assert run is not None, "it is the body of one"
        session = None
        if session_id is not None:
            session = sessions.setdefault((run.owner, session_id), agent.create_session(session_id=session_id))
        updates = agent.run(message, stream=True, session=session, middleware=[Stoppable()])
        return str((await updates.get_final_response()).text)

    body.__name__ = body.__qualname__ = name or agent.name or "agent"
    body.__doc__ = f"The agent {body.__name__}."
    return stoppable.agent(name=body.__name__)(body)

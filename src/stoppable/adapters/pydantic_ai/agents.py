"""Agents of Pydantic AI as agents of stoppable, for ``stoppable serve``, ``run`` and ``check``."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from typing import Any

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage
from pydantic_core import to_jsonable_python

import stoppable
from stoppable.adapters.pydantic_ai.capability import Stoppable
from stoppable.adapters.pydantic_ai.histories import history_of


def as_agent(agent: AbstractAgent[Any, Any], name: str | None = None) -> Callable[..., Any]:
    """Return an agent with the parameters ``user_prompt`` and ``conversation_id``, whose result is the output as JSON.

    What its models say is the partial of the run. The messages of a conversation are kept in this process, for each
    owner separately, also those of a turn that was stopped.
    """
    histories: dict[tuple[str | None, str], list[ModelMessage]] = {}

    async def body(user_prompt: str, conversation_id: str | None = None) -> Any:
        run = stoppable.current_run()
        assert run is not None, "it is the body of one"
        conversation = None if conversation_id is None else (run.owner, conversation_id)
        history = histories.get(conversation, []) if conversation is not None else []
        try:
            result = await agent.run(
                user_prompt,
                message_history=history,
                capabilities=[Stoppable()],
                event_stream_handler=agent.event_stream_handler or _read,
            )
        finally:
            if conversation is not None:
                histories[conversation] = history_of(run, history)
        return to_jsonable_python(result.output)

    body.__name__ = body.__qualname__ = name or agent.name or "agent"
    body.__doc__ = f"The agent {body.__name__}."
    return stoppable.agent(name=body.__name__)(body)


async def _read(_: Any, events: AsyncIterable[Any]) -> None:
    """Read the events of an agent: it streams its models only if somebody does."""
    async for _event in events:
        pass

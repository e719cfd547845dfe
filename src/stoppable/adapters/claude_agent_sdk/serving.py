"""Options of the Claude Agent SDK as agents of stoppable, for `stoppable serve`, `run` and `check`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, SystemMessage, query

import stoppable
from stoppable.adapters.claude_agent_sdk.patches import install


def as_agent(value: Any, name: str | None = None) -> Callable[..., Any]:
    """Return an agent ``(message, session_id=None)`` whose result is the answer; its partial is the text so far.

    ``value`` is a ``ClaudeAgentOptions``. Messages with the same session id are turns of one session of Claude Code,
    one after the other, apart for each owner of runs.
    """
    install()
    options: ClaudeAgentOptions = value
    sessions: dict[tuple[str | None, str], _Session] = {}

    async def answer(message: str, session_id: str | None = None) -> Any:
        run = stoppable.current_run()
        key = None if session_id is None else (None if run is None else run.owner, session_id)
        session = _Session(options) if key is None else sessions.setdefault(key, _Session(options))
        async with session.turn:  # a stop ends the wait
            return await session.ask(message)

    answer.__name__ = answer.__qualname__ = name or "claude"
    answer.__doc__ = "An agent of the Claude Agent SDK."
    return stoppable.agent(answer)


class _Session:
    """A session of Claude Code, which keeps it in its own files."""

    def __init__(self, options: ClaudeAgentOptions) -> None:
        self.turn = asyncio.Lock()
        self._options = options

    async def ask(self, message: str) -> Any:
        """Execute a turn, and return its answer as plain JSON."""
        result = None
        async for each in query(prompt=message, options=self._options):
            if isinstance(each, SystemMessage) and each.subtype == "init":
                self._options = dataclasses.replace(
                    self._options, resume=each.data["session_id"], session_id=None, fork_session=False
                )
            elif isinstance(each, ResultMessage):
                result = each.result if each.structured_output is None else each.structured_output
        return result

"""The conversation with one CLI: the messages that it sends, and the hooks that it asks before it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from claude_agent_sdk import PermissionResultDeny

import stoppable
from stoppable import AgentStopped, Run
from stoppable.adapters.claude_agent_sdk import names
from stoppable.adapters.claude_agent_sdk.turns import ClaudeTurn, stopped_in
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT

_Answer = dict[str, Any]
_END: _Answer = {"continue_": False, "stopReason": "The run was stopped."}
_REFUSAL: _Answer = {
    **_END,
    "hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": NO_EFFECT,
    },
}
_ATTRIBUTE = "_stoppable"
_CONTROL = ("control_request", "control_response", "control_cancel_request", "transcript_mirror")


class Message(dict[str, Any]):
    """A message of the CLI, with the turn in which it came."""

    turn: ClaudeTurn | None = None


class Connection:
    """One CLI, and the turn that it executes for a run; without one, everything is as it was."""

    def __init__(self, query: Any, transport: Any, *, owner: Run | None, wants_pieces: bool) -> None:
        self._query = query
        self._transport = transport
        self._owner = owner
        self._wants_pieces = wants_pieces
        self.turn: ClaudeTurn | None = None
        """The last turn."""
        self._write, self._read = transport.write, transport.read_messages
        transport.write, transport.read_messages = self.write, self.read_messages

    @property
    def model(self) -> str:
        """The name of the model that the user has chosen."""
        return str(getattr(names.options_of(self._transport), "model", None) or "claude")

    def current_turn(self) -> ClaudeTurn | None:
        """Return the turn that the CLI executes; None if that is not for a run."""
        turn = self.turn
        return None if turn is None or turn.is_over else turn

    def _turn_for_more(self) -> ClaudeTurn | None:
        """Return the turn that the CLI executes or is about to: one prompt more, or what its background has led to."""
        turn = self.turn
        if turn is not None and turn.is_over and turn.run.outcome is None:
            turn = self.turn = turn.begin_next()
        return self.current_turn()

    # The transport

    async def write(self, data: str) -> None:
        """Send a message to the CLI; a prompt begins a turn of the run that sends it."""
        if '"user"' in data and json.loads(data).get("type") == "user":
            stoppable.check()
            run = stoppable.current_run()
            turn = self.current_turn()
            if run is None:
                self.turn = None
            elif turn is None or turn.run is not run:
                self.turn = ClaudeTurn(self, run)
        await self._write(data)

    async def read_messages(self) -> AsyncIterator[Message]:
        """Yield the messages of the CLI, but not those that only this adapter has asked for."""
        try:
            async with contextlib.aclosing(self._read()) as messages:
                async for each in messages:
                    message = Message(each)
                    turn = message.turn = self.current_turn()
                    if turn is not None and message.get("type") not in _CONTROL:
                        await turn.note(message)
                    if message.get("type") != "stream_event" or self._wants_pieces:
                        yield message
        finally:
            if (turn := self.current_turn()) is not None:
                turn.end(asyncio.CancelledError() if turn.run.token.stopped else None)

    async def drain(self) -> None:
        """Read and forget the messages that nobody reads any more."""
        with contextlib.suppress(Exception):  # it is closed
            async for _ in names.unread_messages(self._query):
                pass

    async def interrupt(self) -> None:
        """Have the CLI interrupt what it does; it answers when it has begun to."""
        await self._query.interrupt()

    async def stop_task(self, task_id: str) -> None:
        """Have the CLI end a task in the background."""
        await self._query.stop_task(task_id)

    def end_process(self, run: Run) -> None:
        """End the process of the CLI, unless the ladder of its own run does that."""
        pid = names.pid_of(self._transport)
        if pid is not None and self._owner != run:
            with contextlib.suppress(AgentStopped):
                stoppable.adopt_process(pid=pid, name="claude")

    # The hooks

    def add_hooks(self, hooks: dict[str, list[dict[str, Any]]] | None) -> dict[str, list[dict[str, Any]]]:
        """Return the hooks of the user, which become code of the run, and those of this adapter."""
        merged = {
            event: [matcher | {"hooks": [self._hook_in_run(hook) for hook in matcher["hooks"]]} for matcher in matchers]
            for event, matchers in (hooks or {}).items()
        }
        for event, hook in {
            "UserPromptSubmit": self._before_prompt,
            "PreToolUse": self._before_tool,
            "PostToolUse": self._after_tool,
            "PostToolUseFailure": self._after_tool,
            "SubagentStart": self._before_agent,
            "SubagentStop": self._after_agent,
        }.items():
            merged.setdefault(event, []).append({"matcher": None, "hooks": [hook]})
        return merged

    async def _before_prompt(self, _data: Any, _call_id: str | None, _context: Any) -> _Answer:
        turn = self._turn_for_more()
        return {} if turn is None or await turn.ask_model(None) else _END

    async def _before_tool(self, data: Any, _call_id: str | None, _context: Any) -> _Answer:
        turn = self._turn_for_more()
        if turn is None or await turn.begin_tool(data["tool_use_id"], data["tool_name"], data.get("agent_id")):
            return {}
        return _REFUSAL

    async def _after_tool(self, data: Any, _call_id: str | None, _context: Any) -> _Answer:
        turn = self.current_turn()
        return {} if turn is None or await turn.end_tool(data["tool_use_id"], data.get("agent_id")) else _END

    async def _before_agent(self, data: Any, _call_id: str | None, _context: Any) -> _Answer:
        turn = self._turn_for_more()
        return {} if turn is None or await turn.ask_model(data["agent_id"]) else _END

    async def _after_agent(self, data: Any, _call_id: str | None, _context: Any) -> _Answer:
        if (turn := self.current_turn()) is not None:
            turn.end_model(data["agent_id"])
        return {}

    # What the CLI calls in this process

    def _hook_in_run(self, hook: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            turn = self.current_turn()
            if turn is None:
                return await hook(*args)
            task = await turn.perform(hook, *args, joins=False)  # also after a stop: it may note what was done
            return {} if stopped_in(task) else task.result()

        return call

    def permission_in_run(self, ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the user's callback for permissions as code of the run; a stop ends its wait for an answer."""

        async def call(*args: Any) -> Any:
            turn = self.current_turn()
            if turn is None:
                return await ask(*args)
            task = await turn.perform(ask, *args, joins=True)
            return PermissionResultDeny(message=NO_EFFECT) if stopped_in(task) else task.result()

        return call

    async def call_tool(self, handler: Callable[[Any], Awaitable[Any]], arguments: Any) -> Any:
        """Call a tool of this process as code of the run; if the stop cuts it, that is its result."""
        turn = self.current_turn()
        if turn is None:
            return await handler(arguments)
        has_begun = False

        async def perform() -> Any:
            nonlocal has_begun
            has_begun = True
            return await handler(arguments)

        task = await turn.perform(perform, joins=True)
        if not stopped_in(task):
            return task.result()
        text = MAY_HAVE_TAKEN_EFFECT if has_begun else NO_EFFECT
        return {"content": [{"type": "text", "text": text}], "is_error": True}


current: contextvars.ContextVar[Connection | None] = contextvars.ContextVar("stoppable-claude", default=None)
"""The connection whose CLI has called the code."""


def connection_of(query: Any) -> Connection | None:
    """Return the connection of a query; None if it belongs to no run and never will."""
    return getattr(query, _ATTRIBUTE, None)


def follow(query: Any, connection: Connection) -> None:
    """Make a connection that of a query."""
    setattr(query, _ATTRIBUTE, connection)

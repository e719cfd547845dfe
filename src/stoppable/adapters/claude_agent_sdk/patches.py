"""What is replaced in the Claude Agent SDK: how it starts its CLI, talks to it, and hands out its messages."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from claude_agent_sdk import ClaudeSDKClient, SdkMcpTool

import stoppable
from stoppable.adapters._upstream import require, wrap
from stoppable.adapters.claude_agent_sdk import names
from stoppable.adapters.claude_agent_sdk.connections import Connection, Message, connection_of, current, follow
from stoppable.adapters.claude_agent_sdk.names import Query, SubprocessCLITransport

_START_SECONDS = 5.0
_WANTS_PIECES = "_stoppable_wants_pieces"


def install() -> None:
    """Let the stop of a run reach every turn of Claude Code that is begun in it; once per process, at any time.

    Model calls, tools and sub-agents are boundaries. A CLI that is started in a run ends with it; one that was started
    outside is asked to end the turn. Processes belong to their run, as with ``stoppable.instrument()``. Outside a run
    everything works as before.
    """
    require("claude-agent-sdk", names.missing())
    stoppable.instrument()
    wrap(ClaudeSDKClient, "connect", _connect_client)
    wrap(SubprocessCLITransport, "__init__", _make_transport)
    wrap(SubprocessCLITransport, "connect", _start_process)
    wrap(Query, "__init__", _make_query)
    wrap(Query, "start", _start_reading)
    wrap(Query, "receive_messages", _receive)
    wrap(Query, "close", _close)
    if "handler" not in vars(SdkMcpTool):
        SdkMcpTool.handler = _Handler()


_is_client: contextvars.ContextVar[bool] = contextvars.ContextVar("stoppable-claude-client", default=False)


def _is_followed() -> bool:
    """Return whether a CLI may work for runs: it is started in one, or for a client, which may be used in any."""
    return stoppable.current_run() is not None or _is_client.get()


def _connect_client(real: Callable[..., Any]) -> Callable[..., Any]:
    async def connect(self: Any, *args: Any, **options: Any) -> Any:
        token = _is_client.set(True)
        try:
            return await real(self, *args, **options)
        finally:
            _is_client.reset(token)

    return connect


def _make_transport(real: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, prompt: Any, options: Any) -> None:
        setattr(self, _WANTS_PIECES, options.include_partial_messages)
        if _is_followed():  # what is not in pieces is lost if it is cut
            options = dataclasses.replace(options, include_partial_messages=True)
        real(self, prompt, options)

    return init


def _start_process(real: Callable[..., Any]) -> Callable[..., Any]:
    async def connect(self: Any) -> None:
        stoppable.check()
        # As clean-up of the run, so that only KILL ends it: until then it saves the session and ends its tools.
        with stoppable.shielded(_START_SECONDS):
            await real(self)

    return connect


def _make_query(real: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(real)

    def init(self: Any, *args: Any, **options: Any) -> None:
        if not _is_followed():
            real(self, *args, **options)
            return
        bound = signature.bind(self, *args, **options)
        transport = bound.arguments["transport"]
        wants_pieces = getattr(transport, _WANTS_PIECES, True)
        connection = Connection(self, transport, owner=stoppable.current_run(), wants_pieces=wants_pieces)
        bound.arguments["hooks"] = connection.add_hooks(bound.arguments.get("hooks"))
        if (ask := bound.arguments.get("can_use_tool")) is not None:
            bound.arguments["can_use_tool"] = connection.permission_in_run(ask)
        real(*bound.args, **bound.kwargs)
        follow(self, connection)

    return init


def _start_reading(real: Callable[..., Any]) -> Callable[..., Any]:
    async def start(self: Any) -> None:
        token = current.set(connection_of(self))
        try:
            with stoppable.detached():  # a stop must not cut what reads the end of the turn
                await real(self)
        finally:
            current.reset(token)

    return start


def _receive(real: Callable[..., Any]) -> Callable[..., Any]:
    async def receive_messages(self: Any) -> AsyncIterator[Any]:
        connection = connection_of(self)
        async with contextlib.aclosing(real(self)) as messages:
            async for message in messages:
                turn = message.turn if isinstance(message, Message) else None
                if connection is not None and turn is not None and turn.is_cut:
                    if turn is not connection.turn:
                        continue  # the rest of a turn that was stopped is no answer to the next prompt
                    if message.get("type") == "result":
                        stoppable.check()
                yield message

    return receive_messages


def _close(real: Callable[..., Any]) -> Callable[..., Any]:
    async def close(self: Any) -> None:
        connection = connection_of(self)
        turn = None if connection is None else connection.turn
        try:
            if turn is not None:
                await turn.until_over()  # the CLI must be there to end it
        finally:
            if turn is not None and not turn.run.token.stopped:
                turn.end()
            await real(self)

    return close


class _Handler:
    """The attribute ``handler`` of a tool, which is called as code of the run if a CLI calls it."""

    def __get__(self, tool: Any, owner: type | None = None) -> Any:
        if tool is None:
            return self
        handler = vars(tool)["handler"]
        connection = current.get()
        if connection is None:
            return handler
        return lambda arguments: connection.call_tool(handler, arguments)

    def __set__(self, tool: Any, handler: Any) -> None:
        vars(tool)["handler"] = handler

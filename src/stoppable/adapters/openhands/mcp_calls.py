"""Tool calls of MCP servers: a stop tells the server to cancel the request, and the call waits for the answer.

The server itself belongs to its client, and not to the run in which the client connects to it.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import Callable
from typing import Any

import stoppable
from stoppable.adapters.openhands import names
from stoppable.adapters.openhands.terminals import current_call

_logger = logging.getLogger("stoppable.adapters.openhands")


class Request:
    """The request of one tool call, which a stop may meet before it is sent."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.is_cancelled: bool = False  # like the number, set on the loop of the client alone
        self._number: int | None = None

    def cancel(self) -> None:
        """Tell the server to cancel it, from any thread."""
        names.portal_of(self._client).call(self._tell)

    def note_number(self, number: int) -> None:
        """Note the number of the request, just before it is sent."""
        if self.is_cancelled:
            raise RuntimeError("the tool call was stopped before it reached the MCP server")
        self._number = number

    async def _tell(self) -> None:
        self.is_cancelled = True
        if self._number is not None:
            await self._client.cancel(self._number, "the tool call was stopped")


_request: contextvars.ContextVar[Request | None] = contextvars.ContextVar("stoppable-openhands-mcp", default=None)


def call_async_from_sync(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``MCPClient.call_async_from_sync`` that a stop of the tool call passes on to the server.

    The answer is waited for, as nothing else says that the server has ended the work; a run that is given up without it
    is lost.
    """

    @functools.wraps(plain)
    def call(self: Any, awaitable_or_fn: Any, *args: Any, timeout: float, **kwargs: Any) -> Any:
        tool_call = current_call.get()
        if tool_call is None:
            return plain(self, awaitable_or_fn, *args, timeout=timeout, **kwargs)
        request = Request(self)

        async def execute() -> Any:
            _request.set(request)
            awaitable: Any = awaitable_or_fn(*args, **kwargs) if callable(awaitable_or_fn) else awaitable_or_fn
            return await awaitable

        tool_call.when_interrupted(request.cancel)
        answer = plain(self, execute, timeout=timeout)
        if request.is_cancelled and getattr(answer, "is_error", False):
            stoppable.check()  # the server ended it because of the stop
        return answer

    return call


def send_request(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``send_request`` of sessions that notes the number of the request of a tool call."""

    @functools.wraps(plain)
    async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        call = _request.get()
        if call is not None and names.is_tool_call(request):
            call.note_number(self._request_id)
        return await plain(self, request, *args, **kwargs)

    return send


def connect(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``MCPClient.connect`` that starts the server, and the tasks that read from it, outside every run.

    The client serves all runs of a conversation, or of several, and ends the server when it is closed.
    """

    @functools.wraps(plain)
    async def connect_outside(self: Any) -> None:
        with stoppable.detached():
            await plain(self)

    return connect_outside


def wrap() -> None:
    """Wrap the client of MCP, or say in the log that its calls cannot be cancelled."""
    if lacking := names.missing_for_mcp():
        _logger.warning("tool calls of MCP servers cannot be cancelled: mcp has no %s", ", ".join(lacking))
        return
    client, session = names.MCP_CLIENT, names.MCP_SESSION
    client.connect = connect(client.connect)
    client.call_async_from_sync = call_async_from_sync(client.call_async_from_sync)
    session.send_request = send_request(session.send_request)

"""The connection that asked for a run: its id goes out as a header, and its end is noticed."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

RUN_ID_HEADER = "Stoppable-Run-Id"

_RUN_PATHS = ("/run", "/run_sse", "/run_live")


class Connection:
    """A request or a socket that asks for one run."""

    def __init__(self, send: Send, *, is_socket: bool) -> None:
        self.send = send
        self.is_socket = is_socket
        self.run_id = uuid.uuid4().hex
        """Made before the run, because the headers of a stream go out before its run begins."""
        self.is_taken = False
        self.on_left: Callable[[], None] | None = None
        """Called when the client drops the connection, for servers that do not look."""

    def take(self) -> str | None:
        """Return the id for the run that the connection asks for; any other run of its handler gets one of its own."""
        if self.is_taken:
            return None
        self.is_taken = True
        return self.run_id


connection: contextvars.ContextVar[Connection | None] = contextvars.ContextVar("stoppable-adk-connection", default=None)


class Connections:
    """An ASGI middleware that notes which connection asks for a run."""

    def __init__(self, app: Any, *, watches: bool) -> None:
        self._app = app
        self._watches = watches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] not in {"http", "websocket"} or not scope["path"].endswith(_RUN_PATHS):
            await self._app(scope, receive, send)
            return
        made = Connection(send, is_socket=scope["type"] == "websocket")
        token = connection.set(made)
        try:
            if self._watches and scope["path"].endswith("/run"):
                receive = _Watched(receive, made)
            await self._app(scope, receive, _announcing(send, made.run_id))
        finally:
            connection.reset(token)
            if isinstance(receive, _Watched):
                receive.close()


def looks_for_disconnect(endpoint: Callable[..., Any]) -> bool:
    """Return whether ADK's handler of /run notices a client that leaves, as it does from 2.2 on."""
    return "request" in inspect.signature(endpoint).parameters


def _announcing(send: Send, run_id: str) -> Send:
    async def announce(message: MutableMapping[str, Any]) -> None:
        if message["type"] in {"http.response.start", "websocket.accept"}:
            headers = [*message.get("headers", ()), (RUN_ID_HEADER.lower().encode(), run_id.encode())]
            message = {**message, "headers": headers}
        await send(message)

    return announce


class _Watched:
    """Reads on behind the body of a request, until its client leaves."""

    def __init__(self, receive: Receive, made: Connection) -> None:
        self._receive, self._connection = receive, made
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._task is not None:
            await asyncio.wait([self._task])  # nothing else comes, and one reader is all that a connection has
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self._task = asyncio.create_task(self._watch())
        return message

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._connection.on_left is not None:
            self._connection.on_left()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

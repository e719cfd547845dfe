"""The connection that asked for a run: sends the run's id as a header, and notices when the client leaves."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from stoppable.adapters.adk.sessions import Pending, key_of_query, key_of_request

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

RUN_ID_HEADER = "Stoppable-Run-Id"

_RUN_PATHS = ("/run", "/run_sse", "/run_live")


class Connection:
    """A request or a socket that asks for one run."""

    def __init__(self, scope: Message, receive: Receive, send: Send, pending: Pending, *, watches: bool) -> None:
        self.send = send
        self.is_socket: bool = scope["type"] == "websocket"
        self.run_id: str = uuid.uuid4().hex
        """Made before the run, because the headers of a stream go out before its run begins."""
        self.on_left: Callable[[], None] | None = None
        """Called when the client leaves, for handlers that do not check."""
        self._receive, self._pending = receive, pending
        self._key = key_of_query(scope["query_string"]) if self.is_socket else None
        self._watches = watches and not self.is_socket
        self._body = b""
        self._watch: asyncio.Task[None] | None = None
        self._is_taken = False
        if self._key is not None:
            pending.add(self._key, self.run_id)

    def take(self) -> str | None:
        """Return the requested run id; further runs of the same handler get new ids."""
        if self._is_taken:
            return None
        self._is_taken = True
        return self.run_id

    def begun(self) -> None:
        """Note that its run is in the store: a stop finds it there."""
        self._pending.forget(self._key, self.run_id)

    def close(self) -> None:
        """Release what the connection holds."""
        self.begun()
        if self._watch is not None:
            self._watch.cancel()

    async def receive(self) -> Message:
        """Return the next message of the client, and note which session it names."""
        if self._watch is not None:
            await asyncio.wait([self._watch])  # only the end can follow, and a connection has one reader
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.request":
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                self._asked()
        return message

    def _asked(self) -> None:
        self._key = key_of_request(self._body)
        self._body = b""
        if self._key is not None:
            self._pending.add(self._key, self.run_id)
        if self._watches:
            self._watch = asyncio.create_task(self._until_left())

    async def _until_left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self.on_left is not None:
            self.on_left()

    async def announce(self, message: Message) -> None:
        """Send a message, with the id of the run in its headers."""
        if message["type"] in {"http.response.start", "websocket.accept"}:
            headers = [*message.get("headers", ()), (RUN_ID_HEADER.lower().encode(), self.run_id.encode())]
            message = {**message, "headers": headers}
        await self.send(message)


connection: contextvars.ContextVar[Connection | None] = contextvars.ContextVar("stoppable-adk-connection", default=None)


class Connections:
    """An ASGI middleware that notes which connection asks for a run."""

    def __init__(self, app: Any, *, pending: Pending, watches: bool) -> None:
        self._app, self._pending, self._watches = app, pending, watches

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] not in {"http", "websocket"} or not scope["path"].endswith(_RUN_PATHS):
            await self._app(scope, receive, send)
            return
        watches = self._watches and scope["path"].endswith("/run")
        made = Connection(scope, receive, send, self._pending, watches=watches)
        token = connection.set(made)
        try:
            await self._app(scope, made.receive, made.announce)
        finally:
            connection.reset(token)
            made.close()


def looks_for_disconnect(endpoint: Callable[..., Any]) -> bool:
    """Return whether ADK's handler of /run notices a client that leaves, as it does from 2.2 on."""
    return "request" in inspect.signature(endpoint).parameters

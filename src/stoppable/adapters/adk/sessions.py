"""The runs of an ADK session, those that were requested and have not begun, and the connections that asked for them."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import inspect
import json
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qs, quote

from stoppable.errors import RunNotFound
from stoppable.records import IfUnknown
from stoppable.supervisor import BulkStop, Supervisor

_TEXT_LENGTH = 256  # of an owner and of a label
_BODY_LENGTH = 1 << 20  # a request that is longer has images in it: not worth parsing twice


def key_of(app_name: str, user_id: str, session_id: str) -> str:
    """Return the address of a session's runs, for ``supervisor.stop(key=…)`` and ``supervisor.find``."""
    return "adk:" + "/".join(quote(part, safe="") for part in (app_name, user_id, session_id))


def address(app_name: str, user_id: str, session_id: str) -> dict[str, Any]:
    """Return what the runs of a session are started with."""
    return {
        "key": key_of(app_name, user_id, session_id),
        "owner": short(user_id),
        "labels": {"adk.app": short(app_name), "adk.session": short(session_id)},
    }


def short(text: str) -> str:
    """Return a text that fits an owner or a label."""
    return text if len(text) <= _TEXT_LENGTH else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class PendingRuns:
    """The runs that were requested and have not begun, because the agent may have to be loaded first."""

    def __init__(self) -> None:
        self._runs: dict[str, set[str]] = {}

    def of(self, key: str) -> set[str]:
        """Return the ids of those of a session."""
        return set(self._runs.get(key, ()))

    def add(self, key: str, run_id: str) -> None:
        """Note one."""
        self._runs.setdefault(key, set()).add(run_id)

    def forget(self, key: str | None, run_id: str) -> None:
        """Note that it has begun, or never will."""
        if key is not None and (runs := self._runs.get(key)) is not None:
            runs.discard(run_id)
            if not runs:
                del self._runs[key]


def key_of_request(body: bytes) -> str | None:
    """Return the address of the session that the body of a request for a run names."""
    if len(body) > _BODY_LENGTH:
        return None
    try:
        fields = json.loads(body)
    except ValueError:
        return None
    return _key_in(fields) if isinstance(fields, dict) else None


def key_of_query(query: bytes) -> str | None:
    """Return the address of the session that the query of a live run names."""
    return _key_in({name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()})


def _key_in(fields: dict[str, Any]) -> str | None:
    parts = [name for camel, snake in _NAMES if isinstance(name := fields.get(camel, fields.get(snake)), str)]
    return key_of(*parts) if len(parts) == len(_NAMES) else None


_NAMES = (("appName", "app_name"), ("userId", "user_id"), ("sessionId", "session_id"))


class Session:
    """One session, whose runs may be executed by any process that shares the store."""

    def __init__(
        self, supervisor: Supervisor, pending: PendingRuns, app_name: str, user_id: str, session_id: str
    ) -> None:
        self._supervisor = supervisor
        self._key, self._owner = key_of(app_name, user_id, session_id), short(user_id)
        self._pending = pending

    async def stop(self, run_id: str | None, *, is_awaited: bool, **how: Any) -> BulkStop:
        """Stop its runs, or one of them, including those that were requested here and have not begun."""
        if run_id is not None:
            is_own = await self._has(run_id)
            return BulkStop([await self._supervisor.stop(run_id, owner=self._owner, **how)] if is_own else [], None)
        # Each by its own id, so that the stop meets that run and never a later one.
        early = await asyncio.gather(
            *(
                self._supervisor.stop(requested, owner=self._owner, if_unknown="wait", **how)
                for requested in self._pending.of(self._key)
            )
        )
        if_unknown: IfUnknown = "wait" if is_awaited and not early else "ignore"
        stopped = await self._supervisor.stop(key=self._key, owner=self._owner, if_unknown=if_unknown, **how)
        known_ids = {receipt.run_id for receipt in stopped}
        return BulkStop([*stopped, *(one for one in early if one.run_id not in known_ids)], None, stopped.waits_until)

    async def newest(self, run_id: str | None) -> str | None:
        """Return the id of its newest live run, or of the requested one if that belongs to the session."""
        if run_id is not None:
            return run_id if await self._has(run_id) else None
        records = await self._supervisor.find(self._key, owner=self._owner)
        return records[0].id if records else None

    async def _has(self, run_id: str) -> bool:
        try:
            record = await self._supervisor.get(run_id)
        except RunNotFound:
            return False
        return record.key == self._key


Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

RUN_ID_HEADER = "Stoppable-Run-Id"

_RUN_PATHS = ("/run", "/run_sse", "/run_live")


class RunConnection:
    """A request or a socket that asks for one run."""

    def __init__(self, scope: Message, receive: Receive, send: Send, pending: PendingRuns, *, watches: bool) -> None:
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

    def note_begun(self) -> None:
        """Note that its run is in the store: a stop finds it there."""
        self._pending.forget(self._key, self.run_id)

    def close(self) -> None:
        """Release what the connection holds."""
        self.note_begun()
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
                self._note_request()
        return message

    def _note_request(self) -> None:
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


connection: contextvars.ContextVar[RunConnection | None] = contextvars.ContextVar(
    "stoppable-adk-connection", default=None
)


class Connections:
    """An ASGI middleware that notes which connection asks for a run."""

    def __init__(self, app: Any, *, pending: PendingRuns, watches: bool) -> None:
        self._app, self._pending, self._watches = app, pending, watches

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] not in {"http", "websocket"} or not scope["path"].endswith(_RUN_PATHS):
            await self._app(scope, receive, send)
            return
        watches = self._watches and scope["path"].endswith("/run")
        run_connection = RunConnection(scope, receive, send, self._pending, watches=watches)
        token = connection.set(run_connection)
        try:
            await self._app(scope, run_connection.receive, run_connection.announce)
        finally:
            connection.reset(token)
            run_connection.close()


def looks_for_disconnect(endpoint: Callable[..., Any]) -> bool:
    """Return whether ADK's handler of /run notices a client that leaves, as it does from 2.2 on."""
    return "request" in inspect.signature(endpoint).parameters

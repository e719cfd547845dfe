"""Serve agents as tools of MCP: at ``/mcp`` of a server, or over stdin and stdout."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
from typing import Any, BinaryIO

import anyio
import mcp_types as types
from fastapi import APIRouter, Request
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from stoppable import Policy
from stoppable.adapters.mcp.agent_tools import AgentTools
from stoppable.server import Host, Principal
from stoppable.server.backend import Backend
from stoppable.server.responses import Problem, json_response, loads
from stoppable.server.schemas import check_depth
from stoppable.server.surfaces.surface import POLICY

__all__ = ["mcp_api"]

_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"
_IDLE_SECONDS = 24 * 3600.0  # a session without a request; it also ends the calls that it has


def mcp_api(host: Host, *, policy: Policy = POLICY) -> APIRouter:
    """Return the route ``/mcp`` with the agents of a server as tools, for ``serve`` and ``create_app``.

    ``policy`` is that of the runs: by default a stop takes four seconds at most.
    """
    endpoint = _Endpoint(host, policy)
    router = APIRouter()
    # Not GET: the server sends nothing by itself, and a stream that nobody needs would hold up its end.
    for method in ("POST", "DELETE"):
        router.add_api_route(
            "/mcp", endpoint.answer, methods=[method], response_class=Response, include_in_schema=False
        )
    return router


class _Endpoint:
    """Checks requests, and passes them to the SDK."""

    def __init__(self, host: Host, policy: Policy) -> None:
        self._host, self._tools = host, AgentTools(host, policy)
        self._sessions: _Sessions | None = None

    async def answer(self, request: Request) -> Response:
        """Answer a request; its caller is known, and each method checks the scope that it needs."""
        try:
            body = await self._checked_body(request)
        except Problem as problem:
            return _refusal(problem)
        _keep_caller(request, request.state.stoppable_principal)
        if self._sessions is None or not self._sessions.are_here:
            self._sessions = _Sessions(self._tools.server(), max(self._host.limits.body_bytes, 1))
        return _PassedOn(await self._sessions.app(), body)

    async def _checked_body(self, request: Request) -> bytes:
        """Return the body, or refuse what the SDK would open a session for that nobody can use."""
        body = b"" if request.method == "DELETE" else await self._host.body(request)
        version = request.headers.get(_VERSION)
        is_handshake = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        needs_session = is_handshake and _SESSION not in request.headers
        if request.method == "DELETE":
            if needs_session:
                raise Problem(400, "bad_request", "a session is ended by its id: send the header Mcp-Session-Id")
            return body
        try:
            content = check_depth(loads(body))
        except (ValueError, RecursionError) as error:
            raise Problem(400, "invalid_json", f"the body is not JSON that can be read: {error}"[:200]) from None
        if needs_session and not (isinstance(content, dict) and content.get("method") == "initialize"):
            raise Problem(400, "bad_request", "send initialize first, or the header Mcp-Session-Id")
        return body


class _Sessions:
    """The sessions of the SDK on one loop: opened by the first request, they end with the loop.

    A task of their own keeps them, because they have to be left in the task that has entered them.
    """

    def __init__(self, server: Server[Any], most_bytes: int) -> None:
        self._manager = StreamableHTTPSessionManager(
            server, session_idle_timeout=_IDLE_SECONDS, max_request_body_size=most_bytes
        )
        self._are_open = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(), name="mcp sessions", context=contextvars.Context())

    @property
    def are_here(self) -> bool:
        """Whether they are kept on the running loop."""
        return not self._keeper.done() and self._keeper.get_loop() is asyncio.get_running_loop()

    async def app(self) -> ASGIApp:
        """Return what answers requests."""
        await self._are_open.wait()
        app: ASGIApp = self._manager.asgi_app
        return app

    async def _keep(self) -> None:
        async with self._manager.run():
            self._are_open.set()
            await asyncio.get_running_loop().create_future()  # until the end of the loop cancels it


_ERRORS = {"invalid_json": types.PARSE_ERROR}


def _refusal(problem: Problem) -> Response:
    error = {"code": _ERRORS.get(problem.code, types.INVALID_REQUEST), "message": problem.detail}
    return json_response({"jsonrpc": "2.0", "id": None, "error": error}, problem.status_code, problem.headers)


def _keep_caller(request: Request, caller: Principal) -> None:
    """Tell the SDK who is calling, so that a session can only be used by the owner that has opened it."""
    token = AccessToken(token="", client_id=json.dumps(caller.owner), scopes=[])
    request.scope["user"] = AuthenticatedUser(token)


class _PassedOn(Response):
    """A response that another app sends, to a request whose body has been read."""

    def __init__(self, app: ASGIApp, body: bytes) -> None:
        super().__init__()
        self._app, self._body = app, body

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Let the app answer."""
        parts: list[Message] = [{"type": "http.request", "body": self._body, "more_body": False}]

        async def replay() -> Message:
            return parts.pop() if parts else await receive()

        await self._app(scope, replay, send)


async def serve_streams(backend: Backend, reading: BinaryIO, writing: BinaryIO, *, policy: Policy = POLICY) -> None:
    """Serve the agents of a backend to the client at the other end of two pipes, until it closes its one."""
    server = AgentTools(Host(backend), policy).server()
    stdin = anyio.wrap_file(io.TextIOWrapper(reading, encoding="utf-8", errors="replace"))
    stdout = anyio.wrap_file(io.TextIOWrapper(writing, encoding="utf-8"))
    async with stdio_server(stdin, stdout) as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())

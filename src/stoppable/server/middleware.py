"""The middleware of the standalone server."""

from __future__ import annotations

import logging
from collections.abc import Collection
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoppable._core import clock
from stoppable.server.access import check_host
from stoppable.server.limits import ServerLimits
from stoppable.server.responses import Problem

_access = logging.getLogger("stoppable.access")

_LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN = frozenset({"/healthz", "/readyz"})

_UNLESS_GIVEN = {
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    b"x-content-type-options": b"nosniff",
    b"cache-control": b"no-store",
}


class Guard:
    """Checks the host and the head of a request, adds security headers, and logs the request."""

    def __init__(self, app: ASGIApp, limits: ServerLimits, allowed_hosts: Collection[str] | None) -> None:
        self._app = app
        self._limits = limits
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._app(scope, receive, send)
            return
        began, status = clock.now(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message.get("headers", [])
                names = {name for name, _ in given}
                more = [pair for pair in _UNLESS_GIVEN.items() if pair[0] not in names]
                message["headers"] = [*given, *more]
            await send(message)

        try:
            problem = self._refusal(scope)
            await (self._app if problem is None else problem.to_response())(scope, receive, guarded)
        finally:
            _log(scope, status, clock.now() - began)

    def _refusal(self, scope: Scope) -> Problem | None:
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            # A proxy may have decided by one of them, and we would decide by the other.
            return Problem(400, "bad_request", "the request has more than one Host header")
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["query_string"])
        if size > self._limits.head_bytes:
            return Problem(
                431, "head_too_large", f"the headers are over the limit of {self._limits.head_bytes:,} bytes"
            )
        if self._allowed_hosts is not None and scope["path"].removeprefix(scope.get("root_path", "")) not in _OPEN:
            try:
                check_host(Headers(scope=scope), self._allowed_hosts)
            except Problem as problem:
                return problem
        return None


def _log(scope: Scope, status: int, seconds: float) -> None:
    """Log a request; reads are logged at DEBUG level unless they fail."""
    is_look = scope["method"] in _LOOKS and status < HTTPStatus.BAD_REQUEST
    level = logging.DEBUG if is_look else logging.INFO
    if not _access.isEnabledFor(level):
        return
    # The raw path is plain text without line breaks. The query and the headers are not logged: they may hold secrets.
    path = scope.get("raw_path", b"").decode("ascii", "replace")[:300]
    client = scope.get("client")
    _access.log(
        level,
        "%s %s %s %d %.1f ms",
        "-" if client is None else client[0],
        scope["method"],
        path,
        status,
        seconds * 1000,
        extra={"method": scope["method"], "path": path, "status": status, "milliseconds": round(seconds * 1000, 1)},
    )

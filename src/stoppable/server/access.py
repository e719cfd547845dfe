"""What every request passes: its host, size and origin, who is calling, and what the caller may do and see."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http import HTTPStatus
from typing import Any, TypeAlias

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from stoppable._core import clock
from stoppable._core.stop import Receipt
from stoppable.errors import InvalidArgument, RunNotFound, StoppableError, StoreError
from stoppable.records import RunRecord, RunSummary, replace_fields
from stoppable.server.limits import ServerLimits
from stoppable.server.responses import Problem, loads, problem_of, problem_of_validation
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.server")


class Scope(StrEnum):
    """A permission of a caller."""

    READ = "read"
    START = "start"
    STOP = "stop"
    HOLD = "hold"
    AUDIT = "audit"


EVERYTHING = frozenset(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A caller of the server.

    With an ``owner`` the caller sees, starts and stops only that owner's runs. With ``sees_all=True`` it sees every
    run. A principal with neither is refused, so that a missing claim in a token does not grant access to everything.
    ``actor`` is the name in receipts and in the audit. ``scopes`` may be one string with spaces, as in an OAuth token.
    """

    owner: str | None = None
    sees_all: bool = False
    actor: str | None = None
    scopes: Iterable[str] = field(default=EVERYTHING)

    def __post_init__(self) -> None:
        scopes = self.scopes.split() if isinstance(self.scopes, str) else self.scopes
        object.__setattr__(self, "scopes", frozenset(scopes))
        if self.owner is not None and self.sees_all:
            raise InvalidArgument("give a principal an owner or sees_all=True, not both")

    def sees(self, owner: str | None) -> bool:
        """Return whether this caller may see the runs of an owner."""
        return self.sees_all or self.owner == owner

    def sees_run(self, record: RunRecord | RunSummary) -> bool:
        """Return whether this caller may see a run."""
        return self.sees(record.owner)

    def require(self, scope: Scope) -> None:
        """Raise a 403 if the caller lacks a scope."""
        if scope not in self.scopes:
            raise Problem(403, "missing_scope", f"the scope {scope.value!r} is missing")


_TAG = 12  # characters


def own_id(caller: Principal, run_id: str) -> str:
    """Return the id of a run to which a caller gave an id: that id, with a tag of the caller's owner.

    So owners cannot take ids from one another, or find out which ids others have taken.
    """
    if caller.owner is None:
        return run_id
    tag = "~" + hashlib.sha256(caller.owner.encode("utf-8", "surrogatepass")).hexdigest()[:_TAG]
    return run_id if run_id.endswith(tag) else run_id + tag


def admit(request: Request, principal: Any) -> None:
    """Keep the caller with the request, for ``caller_of``; refuse one that is not a valid Principal."""
    if not isinstance(principal, Principal):
        raise TypeError(f"the principal dependency returned {type(principal).__name__}: return a stoppable Principal")
    if principal.owner is None and not principal.sees_all:
        _logger.error("the principal dependency returned a Principal without an owner: sees_all=True means every run")
        raise Problem(403, "no_owner", "the server could not determine whose runs you may see")
    request.state.stoppable_principal = principal


def caller_of(request: Request, scope: Scope) -> Principal:
    """Return the caller of a request, or raise a 403 if a scope is missing."""
    caller: Principal = request.state.stoppable_principal
    caller.require(scope)
    return caller


_SHORTEST = 8

Identify: TypeAlias = Callable[[Request], Principal]
"""Returns the caller of a request, or raises the Problem that refuses it."""


def local_caller() -> Identify:
    """Return the principal of a server that only this machine can reach."""
    local = Principal(sees_all=True, actor="local")
    return lambda _: local


def holder_of(key: str) -> Identify:
    """Return the check for a server with a key, which callers send as a bearer token, or in the header X-Api-Key."""
    if len(key) < _SHORTEST:
        raise InvalidArgument(f"the API key is too short: use {_SHORTEST} characters or more")
    if key != key.strip() or not key.isprintable():
        raise InvalidArgument("the API key cannot be sent in a header: remove white space around it and line breaks")
    expected = _digest(key.encode())
    holder = Principal(sees_all=True, actor="api-key")

    def identify(request: Request) -> Principal:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not scheme and "x-api-key" in request.headers:  # as clients of the LangGraph API send it
            scheme, token = "bearer", request.headers["x-api-key"]
        # Digests have the same length, so the comparison reveals nothing about the key.
        if scheme.lower() != "bearer" or not token.strip():
            raise _refuse_key("a key is required: send the header Authorization: Bearer KEY")
        if not hmac.compare_digest(_digest(token.strip().encode("latin-1")), expected):
            raise _refuse_key("the key is wrong: this server has another one")
        return holder

    return identify


def _refuse_key(message: str) -> Problem:
    return Problem(401, "unauthenticated", message, {"WWW-Authenticate": "Bearer"})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


_DIRECTORIES = re.compile(r'File "[^"\n]*[/\\]([^"\n/\\]+)"')


async def visible_record(supervisor: Supervisor, caller: Principal, record: RunRecord) -> RunRecord:
    """Return a record without what the caller may not see; tracebacks lose the directories of the server."""
    if caller.sees_all:
        return record
    outcome = record.outcome
    if outcome is not None and outcome.error is not None and outcome.error.trace:
        error = replace(outcome.error, trace=_DIRECTORIES.sub(r'File "\1"', outcome.error.trace))
        record = replace_fields(record, outcome=replace(outcome, error=error))
    if record.receipt is None:
        return record
    receipt = await visible_receipt(supervisor, caller, record.receipt)
    return record if receipt is record.receipt else replace_fields(record, receipt=receipt)


async def visible_receipt(supervisor: Supervisor, caller: Principal, receipt: Receipt) -> Receipt:
    """Return a receipt without the nodes of other owners' runs.

    Labels in flight have no owner, so they are taken from the remaining entries.
    """
    names = (receipt.entries, receipt.in_flight, receipt.entered_after, receipt.library_threads, receipt.unguarded)
    if caller.sees_all or not any(names):
        return receipt
    visibility = {record.id: caller.sees_run(record) for record in await supervisor.tree(receipt.run_id)}
    for run_id in {entry.run_id for entry in receipt.entries} - set(visibility):  # its parent was in the store after it
        visibility[run_id] = await _sees_stored_run(supervisor, caller, run_id)
    if all(visibility.values()):
        return receipt
    own = {run_id for run_id, is_seen in visibility.items() if is_seen}
    entries = tuple(entry for entry in receipt.entries if entry.run_id in own)
    labels = {f"{entry.kind}:{entry.name}" if entry.name else entry.kind for entry in entries}
    in_flight = tuple(label for label in receipt.in_flight if label in labels)
    return replace(receipt, entries=entries, in_flight=in_flight, entered_after=(), library_threads=(), unguarded=())


async def _sees_stored_run(supervisor: Supervisor, caller: Principal, run_id: str) -> bool:
    try:
        return caller.sees_run(await supervisor.get(run_id))
    except RunNotFound:
        return False


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

METHODS = ("GET", "POST", "PATCH", "DELETE")
ACCEPTED_HEADERS = ("Authorization", "X-Api-Key", "Content-Type", "Last-Event-ID", "Idempotency-Key")
"""The request headers that a page of another origin may send."""
EXPOSED_HEADERS = ("Stoppable-Run-Id", "Location", "Content-Location")
"""The response headers that it may read."""

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_origin(method: str, headers: Headers, allowed: Collection[str], *, also_reads: bool = False) -> None:
    """Refuse changes requested by pages of another origin, and with ``also_reads`` also reads.

    Browsers send the origin of a request, which a page cannot forge; other clients do not.
    """
    if method in _READS and not also_reads:
        return
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin in allowed:
        return
    if site is not None:
        if site in {"same-origin", "none"}:
            return
    elif origin is None or origin.partition("://")[2] == headers.get("host"):
        return
    raise Problem(403, "foreign_origin", "pages of other origins may not do this: add the origin to allowed_origins")


def check_host(headers: Headers, allowed: Collection[str]) -> None:
    """Refuse unknown host names: after DNS rebinding, a page sends its own host name."""
    if host_name(headers.get("host", "")) not in allowed:
        raise Problem(
            403,
            "foreign_host",
            "without a key this server answers to local host names only: configure a key, a principal or allowed_hosts",
        )


def host_name(host: str) -> str:
    """Return a host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def allow_reading(headers: Headers, response: Response, allowed: Collection[str]) -> None:
    """Let a page of an allowed origin read a response."""
    origin = headers.get("origin")
    response.headers.add_vary_header("Origin")
    if origin is not None and origin in allowed:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = ", ".join(EXPOSED_HEADERS)


def preflight(allowed: Collection[str]) -> Callable[[Request], Awaitable[Response]]:
    """Return the response to a CORS preflight request."""

    async def answer(request: Request) -> Response:
        response = Response(status_code=204)
        allow_reading(request.headers, response, allowed)
        if "Access-Control-Allow-Origin" in response.headers:
            response.headers["Access-Control-Allow-Methods"] = ", ".join(METHODS)
            response.headers["Access-Control-Allow-Headers"] = ", ".join(ACCEPTED_HEADERS)
            response.headers["Access-Control-Max-Age"] = "600"
        return response

    return answer


_access_logger = logging.getLogger("stoppable.access")

_PUBLIC = frozenset({"/healthz", "/readyz"})

_DEFAULT_HEADERS = {
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

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on and add headers to its response; log it either way."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self._app(scope, receive, send)
            return
        began, status = clock.now(), 0

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.get("headers", [])
                names = {name for name, _ in headers}
                more = [pair for pair in _DEFAULT_HEADERS.items() if pair[0] not in names]
                message["headers"] = [*headers, *more]
            await send(message)

        try:
            problem = self._refusal(scope)
            await (self._app if problem is None else problem.to_response())(scope, receive, send_guarded)
        finally:
            _log(scope, status, clock.now() - began)

    def _refusal(self, scope: AsgiScope) -> Problem | None:
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            # A proxy may have decided by one of them, and we would decide by the other.
            return Problem(400, "bad_request", "the request has more than one Host header")
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["query_string"])
        if size > self._limits.head_bytes:
            return Problem(
                431, "head_too_large", f"the headers are over the limit of {self._limits.head_bytes:,} bytes"
            )
        if self._allowed_hosts is not None and scope["path"].removeprefix(scope.get("root_path", "")) not in _PUBLIC:
            try:
                check_host(Headers(scope=scope), self._allowed_hosts)
            except Problem as problem:
                return problem
        return None


def _log(scope: AsgiScope, status: int, seconds: float) -> None:
    """Log a request; reads are logged at DEBUG level unless they fail."""
    is_read = scope["method"] in _READS and status < HTTPStatus.BAD_REQUEST
    level = logging.DEBUG if is_read else logging.INFO
    if not _access_logger.isEnabledFor(level):
        return
    # The raw path is plain text without line breaks. The query and the headers are not logged: they may hold secrets.
    path = scope.get("raw_path", b"").decode("ascii", "replace")[:300]
    client = scope.get("client")
    _access_logger.log(
        level,
        "%s %s %s %d %.1f ms",
        "-" if client is None else client[0],
        scope["method"],
        path,
        status,
        seconds * 1000,
        extra={"method": scope["method"], "path": path, "status": status, "milliseconds": round(seconds * 1000, 1)},
    )


_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})  # not read there
_DISCARDED = 10  # times the limit: a client reads the response only after it has sent everything


def has_body(headers: Headers) -> bool:
    """Return whether a body follows."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def may_have_body(request: Request) -> bool:
    """Return whether a body may follow that the headers do not announce, as in HTTP/2."""
    return request.method not in _WITHOUT_BODY and not request.scope["http_version"].startswith("1")


def check_kind(headers: Headers) -> None:
    """Refuse other types than JSON: a web form can send those to another origin without a preflight request."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Problem(415, "unsupported_media_type", "send JSON, with the header Content-Type: application/json")


async def body_of(request: Request, limits: ServerLimits) -> bytes | None:
    """Return the body of a request, which must be JSON and within the limits; None if there is none."""
    if has_body(request.headers):
        check_kind(request.headers)
        return await read_body(request.receive, limits)
    if not may_have_body(request):
        return None
    body = await read_body(request.receive, limits)
    if body:
        check_kind(request.headers)
    return body


async def read_body(receive: Receive, limits: ServerLimits) -> bytes:
    """Return the body; counts its bytes as they arrive, because a chunked body has no length."""
    limit = limits.body_bytes
    too_large = f"the body is over the limit of {limit:,} bytes"
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            has_more = True
            while has_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "bad_request", "the body is not complete")
                size += len(message.get("body", b""))
                if size > _DISCARDED * limit:
                    raise Problem(413, "too_large", too_large, {"Connection": "close"})
                if size <= limit:
                    chunks.append(message.get("body", b""))
                has_more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(408, "too_slow", "the body did not arrive in time", {"Connection": "close"}) from None
    if size > limit:
        raise Problem(413, "too_large", too_large)
    return b"".join(chunks)


def guarded_route(
    limits: ServerLimits,
    allowed_origins: Collection[str],
    identify: Identify | None = None,
    *,
    tells_origins: bool = False,
) -> type[APIRoute]:
    """Return the route class of one router, with its limits.

    ``identify`` returns the caller, if that needs no dependency of the surrounding app.
    """

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
            handle = super().get_route_handler()
            is_stream = self.path.endswith("/events")  # closing a stream may stop the run

            async def guarded(request: Request) -> Response:
                try:
                    check_origin(request.method, request.headers, allowed_origins, also_reads=is_stream)
                    own = _Request(request.scope, request.receive)
                    if identify is not None:
                        admit(own, identify(own))
                    await own.read(limits)
                    return await handle(own)
                except Problem as problem:
                    return problem.to_response()
                except RequestValidationError as error:
                    return problem_of_validation(error).to_response()
                except StoppableError as error:
                    return answer_to(request, error)

            async def readable(request: Request) -> Response:
                response = await guarded(request)
                allow_reading(request.headers, response, allowed_origins)
                return response

            return readable if tells_origins else guarded

    return GuardedRoute


def answer_to(request: Request, error: StoppableError) -> Response:
    """Return the response for one of our errors."""
    return problem_for(request, error).to_response()


def problem_for(request: Request, error: StoppableError) -> Problem:
    """Return one of our errors as the caller of a request may see it."""
    if isinstance(error, StoreError):
        _logger.warning("the store failed a request: %s", error)
    caller: Principal | None = getattr(request.state, "stoppable_principal", None)
    if caller is None or caller.owner is None:
        return problem_of(error, to_operator=caller is not None)
    return problem_of(error, to_operator=False, owner=caller.owner)


class _Request(Request):
    async def read(self, limits: ServerLimits) -> None:
        """Read the body, if there is one, within the limits."""
        body = await body_of(self, limits)
        if body is not None:
            self._body = body

    async def json(self) -> Any:
        return loads(await self.body())

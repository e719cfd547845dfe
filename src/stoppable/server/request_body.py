"""The body of a request, within bounds."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive

from stoppable.server.limits import ServerLimits
from stoppable.server.problems import Problem

_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})  # nobody reads one there
_DISCARDED = 10  # times the limit: a client reads our answer after it has sent everything, if that is not too much


def has_body(headers: Headers) -> bool:
    """Return whether a body follows."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def may_have_body(request: Request) -> bool:
    """Return whether a body may follow of which the headers say nothing: HTTP/2 has no need to."""
    return request.method not in _WITHOUT_BODY and not request.scope["http_version"].startswith("1")


def check_kind(headers: Headers) -> None:
    """Refuse what is not JSON: a form of a web page can send everything else without asking."""
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
    """Return the body; counts what arrives, since a chunked one does not say how long it will be."""
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

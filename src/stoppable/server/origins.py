"""Whether a web page may make a request: a Stop button belongs to its own page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from stoppable.server.responses import Problem

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

METHODS = ("GET", "POST", "DELETE")
TAKEN = ("Authorization", "Content-Type", "Last-Event-ID", "Idempotency-Key")
"""The headers of a request that a page of another origin may send."""
EXPOSED = ("Stoppable-Run-Id", "Location")
"""Those of a response that it may read."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def check_origin(method: str, headers: Headers, allowed: Collection[str], *, also_looking: bool = False) -> None:
    """Refuse a change that a page of another origin asks for, and if it is said, also a look.

    Browsers say where a request comes from and no page can forge that; other clients say nothing.
    """
    if method in _SAFE and not also_looking:
        return
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin in allowed:
        return
    if site is not None:
        if site in {"same-origin", "none"}:
            return
    elif origin is None or origin.partition("://")[2] == headers.get("host"):
        return
    raise Problem(403, "foreign_origin", "a page of another origin may not do this: name it in allowed_origins")


def check_host(headers: Headers, allowed: Collection[str]) -> None:
    """Refuse a host name that is not ours: a page whose name was pointed at us later (DNS rebinding) sends its own."""
    if host_name(headers.get("host", "")) not in allowed:
        raise Problem(
            403,
            "foreign_host",
            "this server without a key answers to local names only: configure a key, a principal or allowed_hosts",
        )


def host_name(host: str) -> str:
    """Return a host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def share(headers: Headers, response: Response, allowed: Collection[str]) -> None:
    """Let a page of an allowed origin read a response."""
    origin = headers.get("origin")
    response.headers.add_vary_header("Origin")
    if origin is not None and origin in allowed:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = ", ".join(EXPOSED)


def preflight(allowed: Collection[str]) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers a browser that asks whether a page of another origin may make a request."""

    async def answer(request: Request) -> Response:
        response = Response(status_code=204)
        share(request.headers, response, allowed)
        if "Access-Control-Allow-Origin" in response.headers:
            response.headers["Access-Control-Allow-Methods"] = ", ".join(METHODS)
            response.headers["Access-Control-Allow-Headers"] = ", ".join(TAKEN)
            response.headers["Access-Control-Max-Age"] = "600"
        return response

    return answer

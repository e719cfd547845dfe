"""The httpx options of both clients."""

from __future__ import annotations

from typing import Any

import httpx

from stoppable._core.values import seconds
from stoppable.client.call_plans import HttpRequest, authorization, encode, headers_of, is_loopback

_OURS = {"stoppable.spare": True}  # in a run of this process, `instrument()` makes no boundary of such a request
_STREAM_SILENCE = 60.0  # servers send a comment every few seconds: longer silence is a dead connection


def httpx_options(url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Return the arguments for either client of httpx."""
    return {
        "base_url": url,
        "headers": authorization(api_key),
        "timeout": seconds(timeout, "timeout"),
        # Every followed run uses a connection, and none of them may delay a stop.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        # Loading the certificates takes longer than a stop, and plain HTTP does not need them.
        "verify": url.startswith("https"),
        "trust_env": not is_loopback(url),  # it names proxies
    }


def request_options(request: HttpRequest, timeout: float) -> dict[str, Any]:
    """Return the arguments for one request."""
    return {
        "method": request.method,
        "url": request.path,
        "params": list(request.params),
        "content": None if request.body is None else encode(request.body),
        "headers": headers_of(request),
        "timeout": httpx.Timeout(timeout, read=timeout + request.patience),
        "extensions": _OURS,
    }


def stream_options(request: HttpRequest, timeout: float) -> dict[str, Any]:
    """Return the arguments for a request whose response is a stream."""
    return request_options(request, timeout) | {"timeout": httpx.Timeout(timeout, read=_STREAM_SILENCE)}

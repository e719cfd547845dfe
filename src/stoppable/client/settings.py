"""Where the server is, and what both clients tell httpx."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import httpx

from stoppable import _api_key
from stoppable._core.policy import seconds
from stoppable.client.calls import Request, encoded
from stoppable.errors import InvalidArgument

DEFAULT_URL = "http://127.0.0.1:8420"

_STREAM_SILENCE = 60.0  # servers send a comment every few seconds: longer silence is a dead connection
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def server_url(url: str | None) -> str:
    """Return the base URL that was given, or STOPPABLE_URL, or the address that ``stoppable serve`` takes by itself."""
    found = (url or os.environ.get("STOPPABLE_URL") or DEFAULT_URL).rstrip("/")
    if not _is_address(found):
        raise InvalidArgument(f"{found!r} is no address of a server: write it as {DEFAULT_URL}")
    return found


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets or a port that make no sense
        return False


def httpx_options(url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Return the arguments for either client of httpx."""
    key = api_key or _api_key.find()
    return {
        "base_url": url,
        "headers": {b"Authorization": b"Bearer " + _header(key)} if key else {},
        "timeout": seconds(timeout, "timeout"),
        # Every run that is followed has a connection, and none of them may keep a stop waiting.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
        # Reading the certificates takes longer than a stop; without TLS nobody needs them.
        "verify": url.startswith("https"),
        # A proxy cannot reach this machine's own loopback.
        "trust_env": urlsplit(url).hostname not in _LOOPBACK,
    }


def _header(text: str) -> bytes:
    """Return a value of a header in any script; without this check it would be taken for a broken connection."""
    if text != text.strip() or not text.isprintable():
        raise InvalidArgument("no header carries this key as it is: remove white space around it and line breaks")
    return text.encode()


def request_options(request: Request, timeout: float) -> dict[str, Any]:
    """Return the arguments for one request."""
    headers = {name.encode(): _header(value) for name, value in request.headers.items()}
    if request.body is not None:
        headers[b"Content-Type"] = b"application/json"
    return {
        "method": request.method,
        "url": request.path,
        "params": list(request.params),
        "content": None if request.body is None else encoded(request.body),
        "headers": headers,
        "timeout": httpx.Timeout(timeout, read=timeout + request.patience),
    }


def stream_options(request: Request, timeout: float) -> dict[str, Any]:
    """Return the arguments for a request whose answer goes on and on."""
    return request_options(request, timeout) | {"timeout": httpx.Timeout(timeout, read=_STREAM_SILENCE)}


def explained(error: Exception) -> str:
    """Return what a connection died of, in a few words."""
    return str(error).strip() or type(error).__name__

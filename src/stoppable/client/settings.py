"""Where the server is, and the headers of requests to it."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from stoppable import _secrets
from stoppable.client.calls import Request
from stoppable.errors import InvalidArgument

DEFAULT_URL = "http://127.0.0.1:8420"

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def server_url(url: str | None) -> str:
    """Return the given base URL, or STOPPABLE_URL, or the default address of ``stoppable serve``."""
    found = (url or os.environ.get("STOPPABLE_URL") or DEFAULT_URL).rstrip("/")
    if not _is_address(found):
        raise InvalidArgument(f"{found!r} is not the URL of a server: use one like {DEFAULT_URL}")
    return found


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets or a port that make no sense
        return False


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine, which a proxy cannot reach."""
    return urlsplit(url).hostname in _LOOPBACK


def authorization(api_key: str | None) -> dict[bytes, bytes]:
    """Return the header with the key that was given, or with the key of the environment."""
    key = api_key or _secrets.api_key()
    return {b"Authorization": b"Bearer " + _header(key)} if key else {}


def headers_of(request: Request) -> dict[bytes, bytes]:
    """Return the headers of one request."""
    headers = {name.encode(): _header(value) for name, value in request.headers.items()}
    if request.body is not None:
        headers[b"Content-Type"] = b"application/json"
    return headers


def _header(text: str) -> bytes:
    """Return a header value; an invalid one would otherwise look like a broken connection."""
    if text != text.strip() or not text.isprintable():
        raise InvalidArgument("the key cannot be sent in a header: remove white space around it and line breaks")
    return text.encode()


def explained(error: Exception) -> str:
    """Return why a connection failed, in a few words."""
    return str(error).strip() or type(error).__name__

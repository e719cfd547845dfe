"""Who calls a server of its own: whoever has the key, or whoever is on this machine."""

from __future__ import annotations

import hashlib
import hmac

from fastapi import Request

from stoppable.errors import InvalidArgument
from stoppable.server.principal import Principal
from stoppable.server.problems import Problem
from stoppable.server.route import Identify

_SHORTEST = 8


def everybody() -> Identify:
    """Return the principal of a server that only this machine can reach."""
    local = Principal(sees_all=True, actor="local")
    return lambda _: local


def holder_of(key: str) -> Identify:
    """Return the principal of whoever sends the key as a bearer token."""
    if len(key) < _SHORTEST:
        raise InvalidArgument(f"the API key is too short: use {_SHORTEST} characters or more")
    if key != key.strip() or not key.isprintable():
        raise InvalidArgument("no header carries the API key as it is: remove white space around it and line breaks")
    wanted = _digest(key.encode())
    holder = Principal(sees_all=True, actor="api-key")

    def found(request: Request) -> Principal:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Digests have one length, so the comparison tells nothing about the key.
        if scheme.lower() != "bearer" or not hmac.compare_digest(_digest(given.strip().encode("latin-1")), wanted):
            raise Problem(
                401,
                "unauthenticated",
                "send the key of this server, as the header Authorization: Bearer …",
                {"WWW-Authenticate": "Bearer"},
            )
        return holder

    return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

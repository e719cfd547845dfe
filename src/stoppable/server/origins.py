"""Whether a web page may make a request: a Stop button belongs to its own page."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers

from stoppable.server.problems import Problem

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

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

"""Finds the store of a URL: its scheme names a factory, of this library or of an installed package."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias
from urllib.parse import urlsplit

from stoppable import _secrets
from stoppable.errors import InvalidArgument
from stoppable.stores.base import Store
from stoppable.stores.memory import MemoryStore

Factory: TypeAlias = Callable[[str], Store]
"""Takes a URL and returns a store that is not yet open, or raises InvalidArgument, which says what to write instead."""

GROUP = "stoppable.stores"
"""The entry point group in which a package names its factory, under the scheme of its URLs."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_PASSWORD = re.compile(r"//([^:/@]*):[^/]*@")  # up to the last @: a password may contain one that is not written as %40

_registered_factories: dict[str, Factory] = {}


def _memory(url: str) -> Store:
    if url.rstrip("/") != "memory:":
        raise InvalidArgument(f"invalid store URL {url!r}: use memory://")
    return MemoryStore()


def _sqlite(url: str) -> Store:
    from stoppable.stores.sqlite import from_url  # noqa: PLC0415 - it needs an extra

    return from_url(url)


def _postgres(url: str) -> Store:
    from stoppable.stores.postgres import from_url  # noqa: PLC0415 - it needs an extra

    return from_url(url)


_OURS: dict[str, Factory] = {"memory": _memory, "sqlite": _sqlite, "postgresql": _postgres, "postgres": _postgres}


def without_password(url: str) -> str:
    """Return a URL without its password, for messages."""
    return _PASSWORD.sub(r"//\1:***@", url)


def register_store(scheme: str, factory: Factory) -> None:
    """Register a store for a URL scheme, in this process; packages use an entry point instead."""
    if not _SCHEME.fullmatch(scheme):
        raise InvalidArgument(f"{scheme!r} is not a URL scheme: use lower-case letters, digits and + . -")
    if scheme in _OURS:
        raise InvalidArgument(f"{scheme}:// is reserved: choose another scheme")
    _registered_factories[scheme] = factory


def url_in_environment() -> str | None:
    """Return STOPPABLE_STORE, what is in the file STOPPABLE_STORE_FILE, or the systemd credential stoppable-store."""
    return _secrets.store_url()


def store_of(url: str | Store | None) -> Store:
    """Return a store that is not yet open: in memory for None, otherwise what the scheme says."""
    if url is None:
        return MemoryStore()
    if not isinstance(url, str):
        return url
    _secrets.protect(url)
    return _factory(url)(url)


def _factory(url: str) -> Factory:
    scheme = urlsplit(url).scheme
    if scheme in _OURS:
        return _OURS[scheme]
    if scheme in _registered_factories:
        return _registered_factories[scheme]
    factories = list(entry_points(group=GROUP, name=scheme)) if scheme else []
    if not factories:
        schemes = sorted({*_OURS, *_registered_factories, *(point.name for point in entry_points(group=GROUP))})
        raise InvalidArgument(
            f"unknown kind of store {without_password(url)!r}: use sqlite:///runs.db, "
            f"postgresql://user@host/database or memory:// (installed: {', '.join(schemes)})"
        )
    if len({point.value for point in factories}) > 1:
        raise InvalidArgument(
            f"several packages offer stores for {scheme}://: "
            f"uninstall all but one of {', '.join(map(_origin, factories))}"
        )
    factory: Factory = factories[0].load()
    return factory


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} ({point.value})" if point.dist is not None else point.value

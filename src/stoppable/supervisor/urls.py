"""Which store a URL means."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from stoppable.errors import InvalidArgument
from stoppable.stores.base import Store
from stoppable.stores.memory import MemoryStore


def store_of(url: str | Store | None) -> Store:
    """Return a store that is not yet open: in memory for None, otherwise what the scheme says."""
    if url is None:
        return MemoryStore()
    if not isinstance(url, str):
        return url
    parts = urlsplit(url)
    match parts.scheme:
        case "memory":
            return MemoryStore()
        case "sqlite":
            from stoppable.stores.sqlite import SqliteStore  # noqa: PLC0415 - it needs an extra

            # sqlite:///runs.db is in the current folder, sqlite:////var/runs.db is not.
            path = unquote(parts.path).removeprefix("/")
            if parts.netloc or not path:
                raise InvalidArgument(f"the store {url!r} names no file: write sqlite:///runs.db")
            return SqliteStore(path)
        case _:
            raise InvalidArgument(f"the store {url!r} is of no kind we know: use sqlite:///runs.db or memory://")

"""Which store a URL means."""

from __future__ import annotations

from typing import Literal
from urllib.parse import unquote, urlsplit

from stoppable.errors import InvalidArgument
from stoppable.stores.base import Store
from stoppable.stores.memory import MemoryStore

_SYNCHRONOUS: dict[str, Literal["full", "normal"]] = {
    "": "full",
    "synchronous=full": "full",
    "synchronous=normal": "normal",
}


def store_of(url: str | Store | None) -> Store:
    """Return a store that is not yet open: in memory for None, otherwise what the scheme says."""
    if url is None:
        return MemoryStore()
    if not isinstance(url, str):
        return url
    parts = urlsplit(url)
    match parts.scheme:
        case "memory":
            if any(parts[1:]):
                raise InvalidArgument(f"the store {url!r} is none: write memory:// and nothing more")
            return MemoryStore()
        case "sqlite":
            from stoppable.stores.sqlite import SqliteStore  # noqa: PLC0415 - it needs an extra

            # sqlite:///runs.db is in the current folder, sqlite:////var/runs.db is not.
            path = unquote(parts.path).removeprefix("/")
            if parts.netloc or not path:
                raise InvalidArgument(f"the store {url!r} names no file: write sqlite:///runs.db")
            if parts.query not in _SYNCHRONOUS or parts.fragment:
                raise InvalidArgument(
                    f"the store {url!r} asks for what we do not know: after the path write nothing, "
                    "?synchronous=full or ?synchronous=normal; in the path ? is %3F and # is %23"
                )
            return SqliteStore(path, synchronous=_SYNCHRONOUS[parts.query])
        case _:
            raise InvalidArgument(f"the store {url!r} is of no kind we know: use sqlite:///runs.db or memory://")

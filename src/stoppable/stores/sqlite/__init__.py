"""Keeps runs in one SQLite file, which several processes of one machine may share."""

from typing import Literal
from urllib.parse import unquote, urlsplit

from stoppable.errors import InvalidArgument
from stoppable.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "from_url"]

_SYNCHRONOUS: dict[str, Literal["full", "normal"]] = {
    "": "full",
    "synchronous=full": "full",
    "synchronous=normal": "normal",
}


def from_url(url: str) -> SqliteStore:
    """Return the store of a file: sqlite:///runs.db is in the current folder, sqlite:////var/runs.db is not."""
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        raise InvalidArgument(f"invalid store URL {url!r}: name a file, as in sqlite:///runs.db")
    if parts.query not in _SYNCHRONOUS or parts.fragment:
        raise InvalidArgument(
            f"unknown option in the store URL {url!r}: after the path write nothing, "
            "?synchronous=full or ?synchronous=normal; in the path ? is %3F and # is %23"
        )
    return SqliteStore(path, synchronous=_SYNCHRONOUS[parts.query])

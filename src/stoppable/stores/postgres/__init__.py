"""Keeps runs in a Postgres database that many replicas share."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from stoppable.errors import InvalidArgument
from stoppable.stores.postgres.store import PostgresStore
from stoppable.stores.urls import without_password

__all__ = ["PostgresStore", "from_url"]

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def from_url(url: str) -> PostgresStore:
    """Return the store of a database: postgresql://user:password@host/database, with libpq's parameters after a ``?``.

    Two parameters are ours: ``schema`` names the schema of the tables, ``locks`` a directory of this machine.
    """
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = given.pop("schema", "stoppable")
    locks = given.pop("locks", None)
    if not _SCHEMA.fullmatch(schema):
        raise InvalidArgument(f"the schema {schema!r} is not a plain name: use small letters, digits and _")
    if not (parts.path.strip("/") or "dbname" in given):
        raise InvalidArgument(
            f"the store {without_password(url)!r} names no database: write postgresql://user@host/database"
        )
    plain = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(given), ""))
    return PostgresStore(plain, schema=schema, locks=None if locks is None else Path(locks))

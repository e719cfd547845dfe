"""Keeps runs in a Postgres database that many replicas share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

from stoppable import _secrets
from stoppable._extras import pip_install
from stoppable.errors import InvalidArgument, StoreError
from stoppable.stores.base import EVENTS_KEPT, wall_clock
from stoppable.stores.postgres import pg_runs, pg_stops
from stoppable.stores.postgres.pg_leases import default_directory
from stoppable.stores.sql.sql_store import SqlStore, StoreCalls
from stoppable.stores.urls import without_password

if TYPE_CHECKING:
    from stoppable.stores.postgres.pg_engine import PgEngine

__all__ = ["PostgresStore", "from_url"]

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresStore(SqlStore["PgEngine"]):
    """Keeps runs in a Postgres database, for any number of replicas; needs ``pip install "stoppable[postgres]"``.

    Times and leases go by the server's clock; ``clock`` is for tests. ``locks`` is a directory of this machine in which
    each worker holds a locked file, so that others on the machine can prove its death.
    """

    _calls = StoreCalls(
        register=pg_runs.register,
        request_stop=pg_stops.request_stop,
        acknowledge=pg_runs.acknowledge,
        finish=pg_runs.finish,
        append=pg_runs.append,
        in_flight=pg_runs.in_flight,
        purge=pg_runs.purge,
    )

    def __init__(
        self,
        url: str,
        *,
        schema: str = "stoppable",
        locks: Path | None = None,
        clock: Callable[[], float] | None = None,
        events_kept: int = EVENTS_KEPT,
    ) -> None:
        super().__init__(without_password(url), events_kept)
        self._url = url
        self._secrets = _secrets_besides(url)
        self._schema = schema
        self._locks = locks
        self._clock = clock

    def now(self) -> float:
        """Return the time."""
        if self._engine is None:
            return wall_clock() if self._clock is None else self._clock()
        return self._engine.now()

    def _connect(self) -> PgEngine:
        try:
            from stoppable.stores.postgres.pg_connection import DatabaseAddress  # noqa: PLC0415 - psycopg is needed now
            from stoppable.stores.postgres.pg_engine import PgEngine  # noqa: PLC0415
        except ImportError as error:
            raise StoreError(f"runs in Postgres need psycopg: {pip_install('postgres')} ({error})") from error
        return PgEngine(
            DatabaseAddress(url=self._url, schema=self._schema, name=self.name, secrets=self._secrets),
            locks=self._locks or default_directory(),
            clock=self._clock,
            events_kept=self._events_kept,
            hints=self._hints,
            watchers=self._watchers,
        )


def _secrets_besides(url: str) -> dict[str, str]:
    """Return what libpq would read from the environment at every connect, where a server removes it."""
    parts = urlsplit(url)
    parameters = parse_qs(parts.query)
    secrets = {} if "passfile" in parameters else {"passfile": _secrets.variable("PGPASSFILE")}
    if parts.password is None and "password" not in parameters:
        secrets["password"] = _secrets.variable("PGPASSWORD")
    return {name: value for name, value in secrets.items() if value}


def from_url(url: str) -> PostgresStore:
    """Return the store of a database: postgresql://user:password@host/database, with libpq's parameters after a ``?``.

    Two parameters are ours: ``schema`` names the schema of the tables, ``locks`` a directory of this machine.
    """
    parts = urlsplit(url)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = parameters.pop("schema", "stoppable")
    locks = parameters.pop("locks", None)
    if not _SCHEMA.fullmatch(schema):
        raise InvalidArgument(f"the schema {schema!r} is not a plain name: use small letters, digits and _")
    if not (parts.path.strip("/") or "dbname" in parameters):
        raise InvalidArgument(
            f"the store {without_password(url)!r} names no database: write postgresql://user@host/database"
        )
    plain = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(parameters), ""))
    return PostgresStore(plain, schema=schema, locks=None if locks is None else Path(locks))

"""The Store protocol over Postgres."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from stoppable import _secrets
from stoppable._extras import pip_install
from stoppable.errors import StoreError
from stoppable.stores.base import EVENTS_KEPT, wall_clock
from stoppable.stores.postgres import events, retention, runs, stops
from stoppable.stores.postgres.proof_of_death import default_directory
from stoppable.stores.sql.store import Calls, SqlStore
from stoppable.stores.urls import without_password

if TYPE_CHECKING:
    from stoppable.stores.postgres.engine import Engine


class PostgresStore(SqlStore["Engine"]):
    """Keeps runs in a Postgres database, for any number of replicas; needs ``pip install "stoppable[postgres]"``.

    Times and leases go by the server's clock; ``clock`` is for tests. ``locks`` is a directory of this machine in which
    each worker holds a locked file, so that others on the machine can prove its death.
    """

    _calls = Calls(
        register=runs.register,
        request_stop=stops.request_stop,
        acknowledge=runs.acknowledge,
        finish=runs.finish,
        append=events.append,
        in_flight=events.in_flight,
        purge=retention.purge,
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

    def _connect(self) -> Engine:
        try:
            from stoppable.stores.postgres.connection import Address  # noqa: PLC0415 - psycopg is needed now
            from stoppable.stores.postgres.engine import Engine  # noqa: PLC0415
        except ImportError as error:
            raise StoreError(f"runs in Postgres need psycopg: {pip_install('postgres')} ({error})") from error
        return Engine(
            Address(url=self._url, schema=self._schema, name=self.name, secrets=self._secrets),
            locks=self._locks or default_directory(),
            clock=self._clock,
            events_kept=self._events_kept,
            hints=self._hints,
            watchers=self._watchers,
        )


def _secrets_besides(url: str) -> dict[str, str]:
    """Return what libpq would read from the environment at every connect, where a server removes it."""
    parts = urlsplit(url)
    given = parse_qs(parts.query)
    found = {} if "passfile" in given else {"passfile": _secrets.variable("PGPASSFILE")}
    if parts.password is None and "password" not in given:
        found["password"] = _secrets.variable("PGPASSWORD")
    return {name: value for name, value in found.items() if value}

"""Connects with psycopg, and explains its errors."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from psycopg import errors, sql

from stoppable.errors import InvalidArgument, StoppableError, StoreError
from stoppable.stores.postgres.schema import MIGRATIONS

T = TypeVar("T")

ANSWER_SECONDS = 20.0
"""How long the server may take to answer."""
BEAT_SECONDS = 5.0
"""The same for connections on which leases and the speed of a stop depend."""
TRANSACTION_SECONDS = 15
"""After how long the server ends a transaction; from Postgres 17 on."""

_MIGRATE_SECONDS = 60.0
_LONGEST_PAUSE = 5.0  # between two tries to connect
_OLDEST = 140_000

# Every statement finds a few rows by an index. The planner overestimates those that walk down trees: it would read all
# of a long history, and compile the plan. Its statistics of a table may also be old.
_PLANNING = """
SELECT set_config(name, 'off', false) FROM pg_settings
 WHERE name IN ('enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'jit')
"""

# Both sides notice within seconds that the other is gone. A replica that freezes in the middle of a transaction loses
# its locks: after 5 s if the server waits for its next statement, otherwise when the transaction has lasted too long.
# psycopg prepares no statements: it loses track of them when a pipeline fails, and a statement that is not prepared is
# planned for its values.
OPTIONS: dict[str, Any] = {
    "connect_timeout": 5,
    "application_name": "stoppable",
    "prepare_threshold": None,
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 6000,
}
"""The options of every connection."""

_SETTINGS = """
SELECT set_config('search_path', %s, false),
 set_config('idle_in_transaction_session_timeout', '5s', false), set_config('lock_timeout', '10s', false),
 set_config('statement_timeout', '30s', false), set_config('tcp_keepalives_idle', '5', false),
 set_config('tcp_keepalives_interval', '2', false), set_config('tcp_keepalives_count', '3', false),
 CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
 THEN set_config('transaction_timeout', %s, false) END
"""

# During a migration, which takes longer the larger the tables are.
_NO_LIMITS = """
SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')
"""
_MIGRATION_SECONDS = 3600.0

_POOLER = "behind a pooler such as pgbouncer, use session mode"

_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (errors.InvalidPassword, "the password is wrong: see the URL, or PGPASSWORD"),
    (errors.InvalidAuthorizationSpecification, "the server refuses this user: see the URL and pg_hba.conf"),
    (errors.InvalidCatalogName, "there is no such database: create it first"),
    (errors.InsufficientPrivilege, "the role may not do this: docs/how-to/postgres.md lists what it needs"),
    (errors.ReadOnlySqlTransaction, "the database is read-only: give the URL of the primary server"),
    (errors.DiskFull, "the disk of the database is full: make room and try again"),
    (errors.TooManyConnections, "the server has no connection left: raise max_connections, or run fewer replicas"),
    (errors.LockNotAvailable, "another replica has held a lock for 10 seconds: see pg_stat_activity"),
    (errors.UndefinedTable, f"its tables are not there: was the schema dropped? {_POOLER}"),
    (errors.InvalidSqlStatementName, f"a prepared statement is not there: {_POOLER}"),
    (errors.DuplicatePreparedStatement, f"a new connection has prepared statements: {_POOLER}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Which database, and which schema in it."""

    url: str
    schema: str
    name: str
    """What errors call it: the URL without its password."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Parameters of libpq that the URL does not have."""


class ImpatientConnection(psycopg.Connection[Any]):  # type: ignore[misc]  # its types are known where psycopg is
    """A connection that closes itself when the server does not answer in time.

    psycopg waits for ever for a silent peer, such as a proxy that hangs. Keepalives do not notice that.
    """

    patience: float | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Wait for an answer, as psycopg does, but not for ever."""
        answer: T = super().wait(self._bounded(gen), *args, **kwargs)
        return answer

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        patience = ANSWER_SECONDS if self.patience is None else self.patience
        until = time.monotonic() + patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > until:
                    self.close()
                    raise psycopg.OperationalError(f"no answer within {patience:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


def connect(address: Address, patience: float | None = None, *, prepared: Sequence[str] = ()) -> ImpatientConnection:
    """Return a connection that commits each statement that is not in a transaction."""
    try:
        connection: ImpatientConnection = ImpatientConnection.connect(
            address.url, autocommit=True, **OPTIONS, **address.secrets
        )
    except (psycopg.Error, UnicodeError) as error:
        raise explain(error, address) from error
    connection.patience = patience
    try:
        configure(connection, address)
        for statement in prepared:
            connection.execute(statement)
    except psycopg.Error as error:
        connection.close()
        raise explain(error, address) from error
    return connection


def configure(connection: psycopg.Connection[Any], address: Address) -> None:
    """Apply the settings to a new connection."""
    schema = sql.Identifier(address.schema).as_string(connection)
    connection.execute(_SETTINGS, (schema, f"{TRANSACTION_SECONDS}s"))
    connection.execute(_PLANNING)


def explain(error: Exception, address: Address) -> StoppableError:
    """Return our error for one of Postgres's; it says what to do."""
    if isinstance(error, StoppableError):
        return error
    if not isinstance(error, psycopg.Error) or isinstance(error, psycopg.DataError | errors.ProgramLimitExceeded):
        return InvalidArgument(f"a value that Postgres cannot hold: {type(error).__name__}: {error}"[:500])
    said = " ".join(str(error).split())[:500]
    what = next((text for kind, text in _ADVICE if isinstance(error, kind)), None)
    if what is None and "password authentication failed" in said:
        what = "the password is wrong: see the URL, or PGPASSWORD"
    elif what is None and 'database "' in said and "does not exist" in said:
        what = "there is no such database: create it first"
    elif what is None:
        what = "the database does not answer as it should: see whether it is up, and its log"
    return StoreError(f"{address.name}: {what} ({type(error).__name__}: {said})")


class Link:
    """A connection that is made at its first use, and again after it was lost; for one thread.

    While the database is away a call fails at once instead of waiting for a connection, and the pause between two tries
    grows, with jitter, so that many replicas do not come back at the same moment.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._connection: psycopg.Connection[Any] | None = None
        self._failures = 0
        self._next_try = 0.0
        self._error: StoppableError | None = None

    def get(self) -> psycopg.Connection[Any]:
        """Return the connection, or raise a StoreError that says why there is none."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._error is not None and time.monotonic() < self._next_try:
            raise StoreError(str(self._error))
        try:
            self._connection = self._connect()
        except StoppableError as error:
            self._error = error
            self._next_try = time.monotonic() + pause(self._failures)
            self._failures += 1
            raise
        self._failures, self._error = 0, None
        return self._connection

    def drop(self) -> None:
        """Close the connection; the next use makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def pause(failures: int) -> float:
    """Return how many seconds to wait before the next try."""
    longest: float = min(_LONGEST_PAUSE, 0.1 * 2 ** min(failures, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - it only spreads replicas


def migrate(connection: ImpatientConnection, address: Address, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Create the tables, or bring them up to date; of replicas that start together only one does it."""
    connection.patience = _MIGRATION_SECONDS
    try:
        if connection.info.server_version < _OLDEST:
            raise StoreError(f"{address.name} is Postgres {connection.info.server_version // 10_000}: use 14 or newer")
        if _version(connection, address, migrations) < len(migrations):
            _with_lock(connection, address, lambda: _bring_up(connection, address, migrations))
        if connection.execute("SHOW transaction_read_only").fetchone() == ("on",):
            raise errors.ReadOnlySqlTransaction("transaction_read_only is on")
        connection.execute("SELECT 1 FROM runs, events, workers LIMIT 0")
        connection.execute("DELETE FROM followed WHERE expires < 0")  # fails without the right to write
    except psycopg.Error as error:
        raise explain(error, address) from error


def _version(connection: psycopg.Connection[Any], address: Address, migrations: Sequence[str]) -> int:
    row = connection.execute("SELECT to_regclass('version') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return 0
    found = connection.execute("SELECT version FROM version").fetchone()
    version: int = 0 if found is None else found[0]
    if version > len(migrations):
        raise StoreError(
            f"{address.name} has schema {version}, this stoppable knows up to {len(migrations)}: upgrade stoppable"
        )
    return version


def _with_lock(connection: psycopg.Connection[Any], address: Address, work: Callable[[], object]) -> None:
    # Polled: a session that waits in pg_advisory_lock has a snapshot, and CREATE INDEX CONCURRENTLY waits for it.
    key = f"stoppable migration of {address.schema}"
    deadline, between = time.monotonic() + _MIGRATE_SECONDS, threading.Event()
    while connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (key,)).fetchone() != (True,):
        if time.monotonic() > deadline:
            raise StoreError(f"{address.name}: another replica has been upgrading it for {_MIGRATE_SECONDS:.0f} s")
        between.wait(0.05)
    try:
        work()
    finally:
        if not connection.broken:
            connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", (key,))


def _bring_up(connection: psycopg.Connection[Any], address: Address, migrations: Sequence[str]) -> None:
    version = _version(connection, address, migrations)  # another replica may have been faster
    with connection.transaction():
        connection.execute(_NO_LIMITS)
        if version == 0:
            known = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (address.schema,)).fetchone()
            if known is None:
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(address.schema)))
            connection.execute("CREATE TABLE version (version INTEGER NOT NULL)")
            connection.execute("INSERT INTO version VALUES (0)")
        for step in migrations[version:]:
            connection.execute(step)
        connection.execute("UPDATE version SET version = %s", (len(migrations),))

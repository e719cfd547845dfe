"""Opens the file with apsw, and explains its errors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

from stoppable._extras import pip_install
from stoppable.errors import InvalidArgument, StoppableError, StoreError
from stoppable.stores.sql.permissions import make_file
from stoppable.stores.sqlite.schema import APPLICATION_ID, MIGRATIONS

BUSY_SECONDS = 30.0
"""How long a call waits for another process that writes; one that holds the file longer than this has hung."""

_OLDEST = (3, 51, 3)  # older ones can damage the file when the log is reset: https://sqlite.org/wal.html#walresetbug

_ADVICE: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.NotADBError, "it is not a SQLite database: give another path, or move the file away"),
    (apsw.CorruptError, "the file is damaged: restore it from a backup, or move it away to begin a new one"),
    (apsw.FullError, "the disk is full, or the file may not grow: make room and try again"),
    (apsw.ReadOnlyError, "the file or its directory may not be written: change the permissions, or give another path"),
    (apsw.CantOpenError, "the file cannot be opened or made: see its permissions and those of its directory"),
    (apsw.BusyError, f"another process has held it for {BUSY_SECONDS:.0f} seconds: see which one has the file open"),
)


def open_writer(path: Path, synchronous: str) -> apsw.Connection:
    """Return the connection that writes; creates the file, or brings its tables up to date."""
    _refuse_old_sqlite()
    make_file(path)
    try:
        connection = apsw.Connection(str(path))
        try:
            _wait(connection)
            _recognise(connection, path)
            _use_wal(connection, path)
            connection.pragma("synchronous", synchronous)
            connection.pragma("wal_autocheckpoint", 4000)
            connection.pragma("journal_size_limit", 64 << 20)
            connection.pragma("cache_size", -16384)
            _migrate(connection, path, MIGRATIONS)
        except BaseException:
            connection.close()
            raise
    except apsw.Error as error:
        raise explain(error, path) from error
    return connection


def open_reader(path: Path) -> apsw.Connection:
    """Return a connection that only reads."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        _wait(connection)
        connection.pragma("query_only", True)  # noqa: FBT003 - the value of a pragma
    except apsw.Error as error:
        raise explain(error, path) from error
    return connection


def open_log(path: Path) -> int:
    """Return a descriptor of the write-ahead log: a sync of it makes commits durable.

    It stays the same file while a connection is open. SQLite's locks are not on it, so it may be closed at any time.
    """
    try:
        return os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"{path}: its log cannot be opened: check its permissions ({error})") from error


sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
"""Sync a file to the disk, as SQLite itself does."""


def explain(error: Exception, path: Path) -> StoppableError:
    """Return our error for one of SQLite's; it says what to do."""
    if isinstance(error, StoppableError):
        return error
    if not isinstance(error, apsw.Error):  # a lone surrogate, a number of more than 64 bits
        return InvalidArgument(f"a value that no SQLite file can hold: {type(error).__name__}: {error}"[:500])
    what = next((text for kind, text in _ADVICE if isinstance(error, kind)), "see whether its disk is full or failing")
    if isinstance(error, apsw.CantOpenError) and path.is_dir():
        what = "it is a directory: give the path of a file"
    elif isinstance(error, apsw.CantOpenError) and not path.parent.is_dir():
        what = f"there is no directory {path.parent}: make it first"
    return StoreError(f"{path}: {what} ({type(error).__name__}: {error})")


def _refuse_old_sqlite() -> None:
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < _OLDEST:
        raise StoreError(
            f"apsw {apsw.apsw_version()} has SQLite {version}, which can damage a file that several connections use: "
            f"{pip_install('sqlite', upgrade=True)}"
        )


def _wait(connection: apsw.Connection) -> None:
    milliseconds = int(BUSY_SECONDS * 1000)
    connection.set_busy_timeout(milliseconds)
    if hasattr(connection, "setlk_timeout"):  # asks every millisecond; the plain timeout sleeps up to a tenth
        connection.setlk_timeout(milliseconds, 0)


def _recognise(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file of another program, before anything in it is changed."""
    # In this order: another process may be making the file, and it writes its tables and its mark at once.
    has_tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if has_tables and connection.pragma("application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program: give another path")


def _use_wal(connection: apsw.Connection, path: Path) -> None:
    # The busy timeout does not cover this: two processes that make the file at once may meet here.
    deadline = time.monotonic() + BUSY_SECONDS
    pause = threading.Event()
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            pause.wait(0.01)
        else:
            break
    if mode != "wal":
        raise StoreError(f"{path}: its filesystem does not support SQLite's shared memory: use a local one")


def _migrate(connection: apsw.Connection, path: Path, migrations: Sequence[str]) -> None:
    while True:
        version = connection.pragma("user_version")
        assert isinstance(version, int)
        if version > len(migrations):
            raise StoreError(
                f"{path} has schema {version}, this stoppable knows up to {len(migrations)}: upgrade stoppable"
            )
        if version == len(migrations):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            if connection.pragma("user_version") == version:  # unless another process was faster
                connection.execute(migrations[version])
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", version + 1)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

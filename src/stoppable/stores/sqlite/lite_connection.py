"""Opens the file with apsw, brings its tables up to date, and explains errors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

from stoppable._extras import pip_install
from stoppable.errors import InvalidArgument, StoppableError, StoreError
from stoppable.stores.sql.worker_locks import make_file

APPLICATION_ID = 0x53544F50
"""``STOP``, in the header of the file: marks it as ours."""

# Columns for what changes or is searched, JSON for the rest. A run is live while ``ended_at`` is null. Ranks (``mode``,
# ``acknowledged``) are -1 where there is none, so that one comparison answers "is there a stop to acknowledge". The
# number of a run's last event is not stored but looked up, so an append writes to one table only. Events are stored in
# the order in which they came, not by run, so a hundred runs that log at once write to a few pages, not to a hundred.
_FIRST = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    request TEXT NOT NULL,
    parent INTEGER,
    parent_id TEXT,
    root_id TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT,
    labels TEXT NOT NULL,
    spec TEXT NOT NULL,
    created_at REAL NOT NULL,
    worker TEXT NOT NULL,
    status TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    started_at REAL,
    ended_at REAL,
    mode INTEGER NOT NULL DEFAULT -1,
    grace REAL,
    reason TEXT,
    stop_requested_at REAL,
    acknowledged INTEGER NOT NULL DEFAULT -1,
    outcome TEXT,
    receipt TEXT
) STRICT;
CREATE INDEX runs_by_status ON runs (status);
CREATE INDEX runs_by_owner ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL;
CREATE INDEX runs_by_parent_id ON runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_live ON runs (worker) WHERE ended_at IS NULL;
CREATE INDEX runs_to_stop ON runs (worker) WHERE ended_at IS NULL AND mode > acknowledged;
CREATE INDEX roots_by_end ON runs (ended_at) WHERE parent IS NULL AND ended_at IS NOT NULL;

CREATE TABLE events (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    at REAL NOT NULL,
    type TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_run ON events (run, seq);

CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    boot TEXT NOT NULL,
    until REAL NOT NULL,
    ttl REAL NOT NULL,
    state TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE fenced (
    worker TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE tombstones (
    run_id TEXT NOT NULL,
    owner TEXT,
    expires REAL NOT NULL,
    stop TEXT NOT NULL
) STRICT;
CREATE INDEX tombstones_by_run ON tombstones (run_id);

CREATE TABLE holds (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    hold TEXT NOT NULL
) STRICT;

CREATE TABLE audit (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    action TEXT NOT NULL,
    entry TEXT NOT NULL
) STRICT;

CREATE TABLE answered (
    key TEXT NOT NULL,
    owner TEXT,
    at REAL NOT NULL,
    answers TEXT NOT NULL,
    hold TEXT
) STRICT;
CREATE INDEX answered_by_key ON answered (key);
CREATE INDEX answered_by_time ON answered (at);
"""

# Keys are stored as JSON: any text is a key, and not every text fits into a column.
_KEYS = """
ALTER TABLE runs ADD COLUMN key TEXT;
CREATE INDEX runs_by_key ON runs (key, ended_at) WHERE key IS NOT NULL;

CREATE TABLE key_tombstones (
    key TEXT NOT NULL,
    owner TEXT,
    expires REAL NOT NULL,
    stop TEXT NOT NULL
) STRICT;
CREATE INDEX key_tombstones_by_key ON key_tombstones (key);

ALTER TABLE answered ADD COLUMN waits_until REAL;
"""

_FACTS = """
ALTER TABLE runs ADD COLUMN input TEXT;
ALTER TABLE runs ADD COLUMN metadata TEXT;
"""

# Large outcomes have their own table, so that a list does not read them.
_OUTCOMES = """
CREATE TABLE outcomes (
    run INTEGER PRIMARY KEY,
    outcome TEXT NOT NULL
) STRICT;
INSERT INTO outcomes SELECT number, outcome FROM runs WHERE length(outcome) > 2048;
UPDATE runs SET outcome = json_replace(outcome, '$.result', NULL, '$.partial', NULL, '$.error.trace', '',
 '$.error.message', substr(outcome ->> '$.error.message', 1, 500)) WHERE length(outcome) > 2048;
"""

_LATE = "ALTER TABLE runs ADD COLUMN ended_late REAL;"

# Large inputs too, because every change of a run writes its whole row again.
_INPUTS = """
CREATE TABLE inputs (
    run INTEGER PRIMARY KEY,
    input TEXT NOT NULL
) STRICT;
CREATE INDEX tombstones_by_time ON tombstones (expires);
CREATE INDEX key_tombstones_by_time ON key_tombstones (expires);
"""

# Each label of each run, so that a list by a label does not read all runs. By triggers, because a process that opened
# the file before this step may still write.
_LABELS = """
CREATE TABLE run_labels (
    pair TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (pair, run)
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO run_labels
    SELECT json_array(label.key, label.value), number FROM runs, json_each(labels) AS label;
CREATE TRIGGER label_run AFTER INSERT ON runs WHEN new.labels <> '{}' BEGIN
    INSERT OR IGNORE INTO run_labels SELECT json_array(key, value), new.number FROM json_each(new.labels);
END;
CREATE TRIGGER unlabel_run AFTER DELETE ON runs WHEN old.labels <> '{}' BEGIN
    DELETE FROM run_labels WHERE run = old.number
        AND pair IN (SELECT json_array(key, value) FROM json_each(old.labels));
END;
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _KEYS, _FACTS, _OUTCOMES, _LATE, _INPUTS, _LABELS)
"""The step from each version of the schema (``PRAGMA user_version``) to the next; a released one never changes."""


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

"""The tables, and the steps that bring a file of an older stoppable up to date."""

from __future__ import annotations

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

MIGRATIONS: tuple[str, ...] = (_FIRST, _KEYS, _FACTS, _OUTCOMES, _LATE, _INPUTS)
"""The step from each version of the schema (``PRAGMA user_version``) to the next; a released one never changes."""

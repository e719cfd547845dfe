"""The connection that a call uses, what the call has changed, and the statements that need every column of a run.

Statements are queued and sent together: only reading an answer waits for the server. ``run`` reads none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from stoppable._core.stop import Receipt
from stoppable.records import EventType, RunRecord
from stoppable.stores.base import ANY
from stoppable.stores.sql import rows
from stoppable.stores.sql.queries import SqlSession, SqlTransaction
from stoppable.stores.sql.rows import Row

if TYPE_CHECKING:
    import psycopg


RECORD = rows.record_columns("last_event")
SUMMARY = rows.summary_columns("brief")

INSERT = f"""INSERT INTO runs ({rows.COLUMNS}, number, brief)
 VALUES (%s, %s, %s, %s, %s, %s, %s, %s::jsonb, {", ".join(["%s"] * 19)})"""  # noqa: S608 - our own names
"""Takes what ``rows.values`` returns, the number, and ``brief``."""

UPDATE = """UPDATE runs SET status = %s, epoch = %s, started_at = %s, ended_at = %s, mode = %s, grace = %s, reason = %s,
 stop_requested_at = %s, acknowledged = %s, outcome = %s, receipt = %s, metadata = %s, brief = %s, last_event = %s,
 is_truncated = %s WHERE number = %s"""
"""Takes what ``rows.ending_values`` returns, ``brief``, the end of the log, and the number."""


def plain(values: Row) -> Row:
    """Return values with enumerations replaced, which psycopg would write by name."""
    return tuple(value.value if isinstance(value, Enum) else value for value in values)


def brief(receipt: Receipt | None) -> str | None:
    """Return a receipt without its entries, for lists."""
    return None if receipt is None else rows.encode(replace(receipt, entries=()))


def brief_of(record: RunRecord) -> str | None:
    """Return the receipt of a record without its entries, for lists."""
    return brief(record.receipt)


def mark(kind: EventType, data: str) -> str | None:
    """Return what queries look for in an event: its boundary, or that it replaces the partial."""
    if kind in {EventType.ENTERED, EventType.LEFT}:
        fields = rows.decode(data)
        return rows.encode((fields.get("kind"), fields.get("name")))
    if kind is EventType.PARTIAL:
        return None if "delta" in rows.decode(data) else "set"
    return None


_BEGUN = "SELECT extract(epoch FROM clock_timestamp())::float8, pg_current_xact_id()::text"

# Notifies every process that follows one of the names, except this one.
_NOTIFY = """
SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS told (name, payload)
JOIN followed USING (name) WHERE channel <> %s AND expires > %s
"""

PAYLOAD = 7900
"""How many bytes a notification may carry: less than 8000."""

RUN, WORKER = "run ", "worker "
"""The prefixes of names in ``followed``."""


# Each row with the number of characters before it, and how many rows there are.
_SOME = """SELECT * FROM (
 SELECT page.*, sum(length(data)) OVER (ORDER BY {1}) - length(data) AS before, count(*) OVER () AS total
 FROM ({0}) AS page) AS counted WHERE before < %s ORDER BY {1}"""


class PgSession(SqlSession):
    """A connection to the database."""

    record_columns = RECORD
    summary_columns = SUMMARY
    has_labels = "labels @> ?::jsonb"
    place = "place"

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def ask(self, sql: str, values: Any = ()) -> psycopg.Cursor[Any]:
        """Send a statement whose rows are read later; no statement of ours has a ``?`` that is not for a value."""
        return self._connection.execute(sql.replace("?", "%s"), values)

    def perform(self, sql: str, values: Any) -> psycopg.Cursor[Any]:
        """Ask by an EXECUTE: it takes no parameters, so the values are written into its text."""
        from psycopg import ClientCursor  # noqa: PLC0415 - psycopg is there now

        return ClientCursor(self._connection).execute(sql, values)

    def all(self, sql: str, values: Any = ()) -> list[Row]:
        """Return every row."""
        result: list[Row] = self.ask(sql, values).fetchall()
        return result

    def one(self, sql: str, values: Any = ()) -> Row | None:
        """Return the only row, or None."""
        row: Row | None = self.ask(sql, values).fetchone()
        return row

    def some(self, sql: str, values: Any, order: str, size: int) -> tuple[list[Row], bool]:
        """Return rows until the last column has ``size`` characters, at least one, and whether these are all."""
        page = self.all(_SOME.format(sql, order), (*values, size))
        return [row[:-2] for row in page], not page or page[0][-1] == len(page)

    def records(self, run_ids: Sequence[str]) -> list[Row]:
        """Return the records of runs, ordered by their numbers."""
        return self.all(f"SELECT {RECORD} FROM runs WHERE id = ANY(%s) ORDER BY number", (list(run_ids),))  # noqa: S608 - our own names

    def logs(self, *, of_tree: bool) -> str:  # noqa: ARG002 - the planner chooses
        """Return the FROM clause of all logs."""
        return "events JOIN runs ON number = run"


class PgTransaction(PgSession, SqlTransaction):
    """A session that writes.

    After the commit, listeners of ``touched_runs`` and workers with ``new_stops`` are notified and ``later`` is called;
    after a rollback ``undo`` is called. Locks are taken in one order, which prevents deadlocks: names (``lock``),
    workers, runs by their numbers, and last ``in_order``.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        scope: str,
        channel: str,
        clock: Callable[[], float] | None,
        events_kept: int,
        tell: Callable[[PgTransaction], object],
        is_repeated: bool = False,
    ) -> None:
        super().__init__(connection)
        self.events_kept = events_kept
        self._scope = scope
        self.channel: str = channel
        self._clock = clock
        self._tell = tell
        self.is_repeated: bool = is_repeated
        """Whether it is another try of the same call."""
        self.touched_runs: set[str] = set()
        self.new_stops: dict[str, list[Row]] = {}
        self.later: list[Callable[[], object]] = []
        self.undo: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Begin; nothing is sent yet."""
        self.is_committing: bool = False
        self.may_be_kept: bool = False
        self._is_ordered = False
        self.ask("BEGIN")
        self._beginning_row: Row | None = None
        self._beginning_reply = self.ask(_BEGUN)

    def now(self) -> float:
        """Return the time of the server when the transaction began."""
        return float(self._beginning()[0]) if self._clock is None else self._clock()

    def id(self) -> str:
        """Return the number under which the server knows what becomes of the transaction."""
        return str(self._beginning()[1])

    def _beginning(self) -> Row:
        beginning = self._beginning_row
        if beginning is None:
            beginning = self._beginning_row = self._beginning_reply.fetchall()[0]
        return beginning

    def clock(self) -> float | None:
        """Return the time of the test's clock, or None if the server's clock counts."""
        return None if self._clock is None else self.now()

    def run(self, sql: str, values: Any = ()) -> None:
        """Make a change."""
        self.ask(sql, values)

    def lock(self, kind: str, name: str, *, shared: bool = False) -> None:
        """Wait for other transactions that lock the same name; shared locks do not wait for each other."""
        self._lock(f"{kind} {name}", "_shared" if shared else "")

    def in_order(self) -> None:
        """Commit in one order with all transactions that call this: numbers from here on become visible in order.

        A reader that continues after the highest number then misses none, and a new follower of a run either sees a
        change or is notified of it. No other lock is taken after this one.
        """
        if not self._is_ordered:
            self._is_ordered = True
            self._lock("order", "")

    def order_key(self) -> int:
        """Return the key of the lock of ``in_order``, for a statement that takes the lock itself."""
        return self._key("order")

    def _lock(self, name: str, suffix: str) -> None:
        self.ask(f"SELECT pg_advisory_xact_lock{suffix}(%s)", (self._key(name),))

    def _key(self, name: str) -> int:
        text = f"{self._scope} {name}".encode(errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)

    def touch(self, run_id: str) -> None:
        """Record that a run has changed."""
        self.touched_runs.add(run_id)

    def wake(self, worker: str, *intents: Row) -> None:
        """Record that a worker has pending stops, and which."""
        self.new_stops.setdefault(worker, []).extend(intents)

    def commit(self, *, is_repeatable: bool = False) -> None:
        """Notify other processes and commit, unless that was done; everything is sent now.

        A repeatable transaction may be repeated when it is unknown whether it was committed.
        """
        if self.is_committing:
            return
        names = {RUN + run_id: "" for run_id in self.touched_runs}
        if names:
            names[RUN + ANY] = ""
        for worker, intents in self.new_stops.items():
            names[WORKER + worker] = rows.encode(intents)
        if names:
            self.in_order()
            payloads = [payload(name, detail) for name, detail in names.items()]
            self.run(_NOTIFY, (list(names), payloads, self.channel, self.now()))
        self.is_committing = True
        self.may_be_kept = not is_repeatable
        self.ask("COMMIT")

    def next_part(self) -> None:
        """Commit what was done so far and begin another transaction, so that others get their locks."""
        self.commit()
        self.all("SELECT 1")  # waits for the commit
        self._tell(self)
        self.touched_runs, self.new_stops, self.later, self.undo = set(), {}, [], []
        self.begin()


def payload(name: str, detail: str) -> str:
    """Return the payload for a name: with its detail, without, or empty if both are too long."""
    for text in (rows.encode((name, detail)), rows.encode((name, ""))):
        if len(text) <= PAYLOAD:
            return text
    return ""

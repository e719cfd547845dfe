"""What a call sees while it is made: the connection, the time, and a note of what it touches.

Statements are queued and sent together: the server is waited for only where an answer is read. ``run`` reads none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoppable.errors import RunNotFound
from stoppable.stores import listeners
from stoppable.stores.sql import rows
from stoppable.stores.sql.rows import Row

if TYPE_CHECKING:
    import psycopg

_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"

# Each follower but this process, with the payload of the name that it follows.
_NOTIFY = """
SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS told (name, payload)
JOIN followed USING (name) WHERE channel <> %s AND expires > %s
"""

PAYLOAD = 7900
"""How many bytes a notification may carry: less than 8000."""

RUN, WORKER = "run ", "worker "
"""What a name in ``followed`` begins with."""


class Session:
    """A connection as the calls use it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def ask(self, sql: str, values: Any = ()) -> psycopg.Cursor[Any]:
        """Send a question whose answer is read later."""
        return self._connection.execute(sql, values)

    def all(self, sql: str, values: Any = ()) -> list[Row]:
        """Return every row."""
        found: list[Row] = self.ask(sql, values).fetchall()
        return found

    def one(self, sql: str, values: Any = ()) -> Row | None:
        """Return the only row there can be."""
        found: Row | None = self.ask(sql, values).fetchone()
        return found

    def number(self, run_id: str) -> int:
        """Return the number under which a run is kept."""
        row = self.one("SELECT number FROM runs WHERE id = %s", (run_id,))
        if row is None:
            raise RunNotFound(run_id)
        return int(row[0])


class Transaction(Session):
    """A session that writes; ``touched`` runs, ``woken`` workers and ``later`` wait for its end, ``undo`` for another.

    Locks are taken in one order, so that transactions wait for each other and not in a circle: names (``lock``),
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
        tell: Callable[[Transaction], object],
    ) -> None:
        super().__init__(connection)
        self.events_kept = events_kept
        self._scope = scope
        self.channel: str = channel
        self._clock = clock
        self._told = tell
        self.touched: set[str] = set()
        self.woken: dict[str, list[Row]] = {}
        self.later: list[Callable[[], object]] = []
        self.undo: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Begin; nothing is sent yet."""
        self.is_committing: bool = False
        self.may_be_kept: bool = False
        self._is_ordered = False
        self.ask("BEGIN")
        self._time: float | None = None
        self._asked = None if self._clock is not None else self.ask(_CLOCK)

    def now(self) -> float:
        """Return the time of the server when the transaction began."""
        if self._time is None:
            if self._asked is None:
                assert self._clock is not None
                self._time = self._clock()
            else:
                self._time = float(self._asked.fetchall()[0][0])
        return self._time

    def clock(self) -> float | None:
        """Return the time, if it is not that of the server."""
        return None if self._clock is None else self.now()

    def run(self, sql: str, values: Any = ()) -> None:
        """Make a change."""
        self.ask(sql, values)

    def lock(self, kind: str, name: str, *, shared: bool = False) -> None:
        """Wait for whoever has the same name, until the end; sharers do not wait for each other."""
        self._lock(f"{kind} {name}", "_shared" if shared else "")

    def in_order(self) -> None:
        """Commit in one order with all others that say so: numbers given from here on are seen in their order.

        Whoever reads on after the highest number then misses none, and whoever begins to follow a run either sees a
        change or is told of it. No other lock is taken after this one.
        """
        if not self._is_ordered:
            self._is_ordered = True
            self._lock("order", "")

    def order_key(self) -> int:
        """Return the key of the lock that ``in_order`` takes, for a statement that takes it by itself."""
        return self._key("order")

    def _lock(self, name: str, suffix: str) -> None:
        self.ask(f"SELECT pg_advisory_xact_lock{suffix}(%s)", (self._key(name),))

    def _key(self, name: str) -> int:
        text = f"{self._scope} {name}".encode(errors="surrogatepass")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)

    def touch(self, run_id: str) -> None:
        """Note that a run is changed."""
        self.touched.add(run_id)

    def wake(self, worker: str, *intents: Row) -> None:
        """Note that a worker has something to stop, and what."""
        self.woken.setdefault(worker, []).extend(intents)

    def commit(self, *, is_repeatable: bool = False) -> None:
        """Tell other processes and commit, unless that was done; everything is sent now.

        A transaction that is repeatable may be made again when it is not known whether it was kept.
        """
        if self.is_committing:
            return
        names = {RUN + run_id: "" for run_id in self.touched}
        if names:
            names[RUN + listeners.ANY] = ""
        for worker, intents in self.woken.items():
            names[WORKER + worker] = rows.encode(intents)
        if names:
            self.in_order()
            payloads = [payload(name, detail) for name, detail in names.items()]
            self.run(_NOTIFY, (list(names), payloads, self.channel, self.now()))
        self.is_committing = True
        self.may_be_kept = not is_repeatable
        self.ask("COMMIT")

    def next_part(self) -> None:
        """Keep what was done so far, and go on in another transaction: others come to what they wait for."""
        self.commit()
        self.all("SELECT 1")  # it is kept only now
        self._told(self)
        self.touched, self.woken, self.later, self.undo = set(), {}, [], []
        self.begin()


def payload(name: str, detail: str) -> str:
    """Return what is told: a name and its detail, the name, or nothing: then anything may have changed."""
    for text in (rows.encode((name, detail)), rows.encode((name, ""))):
        if len(text) <= PAYLOAD:
            return text
    return ""

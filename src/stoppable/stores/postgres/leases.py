"""Workers: their leases, their pending stops, and the end of their runs when they are gone.

An expired lease proves nothing. A death is proven by a free lock in this machine's directory, or by a reboot since;
only replicas on the same machine can see either. Locks of Postgres prove nothing: losing a connection frees them.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoppable.errors import Fenced
from stoppable.records import RunRecord
from stoppable.stores import rules
from stoppable.stores.base import Intent, WorkerInfo
from stoppable.stores.postgres import events, runs
from stoppable.stores.postgres.events import Log
from stoppable.stores.postgres.proof_of_death import Machine
from stoppable.stores.postgres.rows import RECORD
from stoppable.stores.postgres.transaction import Transaction
from stoppable.stores.sql import rows
from stoppable.stores.sql.queries import intents

_FENCED = """SELECT 1 FROM fenced WHERE worker = %(id)s
 UNION ALL SELECT 1 FROM workers WHERE id = %(id)s AND state <> 'open'"""
_OPEN = """INSERT INTO workers (id, host, pid, machine, boot, until, ttl, state)
 VALUES (%s, %s, %s, %s, %s, %s, %s, 'open') ON CONFLICT (id) DO UPDATE
 SET machine = excluded.machine, boot = excluded.boot, until = excluded.until, ttl = excluded.ttl"""
_RENEW = "UPDATE workers SET until = %s, ttl = %s WHERE id = %s AND state = 'open' RETURNING 1"
_PRESUMED = "SELECT id, machine, boot, until < %s FROM workers WHERE state IN ('open', 'silent')"
# Checked again under a lock, since the lease may have been renewed. A start of a run of this worker waits for the lock.
_MARK = """UPDATE workers SET state = %s FROM (SELECT id FROM workers WHERE id = ANY(%s) AND state IN ('open', 'silent')
 AND (%s OR until < %s) ORDER BY id FOR UPDATE) AS gone WHERE workers.id = gone.id"""
_GONE = f"""SELECT {RECORD}, is_truncated, state <> 'silent' FROM runs JOIN (
 SELECT id AS gone, state FROM workers WHERE state <> 'open') AS workers ON worker = gone
 WHERE ended_at IS NULL AND (state <> 'silent' OR %s) ORDER BY number LIMIT %s FOR NO KEY UPDATE OF runs"""  # noqa: S608
_FORGET = """WITH gone AS (
 DELETE FROM workers WHERE state <> 'open' AND NOT EXISTS
 (SELECT 1 FROM runs WHERE worker = workers.id AND ended_at IS NULL) RETURNING id
) INSERT INTO fenced SELECT id FROM gone ON CONFLICT DO NOTHING RETURNING worker"""


class Leases:
    """The calls about workers."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def open_worker(self, tx: Transaction, info: WorkerInfo, ttl: float) -> None:
        """Give a process a lease; it takes its lock first, so a lease without a lock is that of a dead worker."""
        tx.lock("worker", info.id)
        if tx.one(_FENCED, {"id": info.id}) is not None:
            raise Fenced(info.id)
        if self._machine.locks.take(info.id):
            tx.undo.append(lambda: self._machine.locks.drop(info.id))
        tx.run(_OPEN, (info.id, info.host, info.pid, self._machine.id, self._machine.boot, tx.now() + ttl, ttl))

    def heartbeat(self, tx: Transaction, worker: str, ttl: float) -> Sequence[Intent]:
        """Renew a lease, and return the pending stops."""
        renewed = tx.ask(_RENEW, (tx.now() + ttl, ttl, worker))
        found = intents(tx, worker)
        if renewed.fetchone() is None:
            raise Fenced(worker)
        return found

    def close_worker(self, tx: Transaction, worker: str) -> None:
        """Release a lease."""
        tx.run("SELECT 1 FROM workers WHERE id = %s FOR UPDATE", (worker,))
        tx.run("UPDATE workers SET state = 'closed' WHERE id = %s AND state = 'open'", (worker,))
        tx.later.append(lambda: self._machine.locks.drop(worker))

    def reap(self, tx: Transaction, limit: int, expired: bool) -> Sequence[RunRecord]:  # noqa: FBT001 - the store names it
        """End the runs of workers that are gone."""
        self._mark_gone(tx, expired=expired)
        found = tx.all(_GONE, (expired, max(limit, 0)))
        partials = events.partials(tx, [row[-3] for row in found]) if found else {}
        reaped = []
        for *row, is_truncated, is_dead in found:
            log = Log(row[-1], row[-2], is_truncated)
            record = rules.given_up(
                rows.record(tuple(row)), tx.now(), proven_dead=is_dead, partials=partials.get(log.number, ())
            )
            reaped.append((log, record))
        ended = [runs.end(tx, log, record) for log, record in reaped]
        gone = [worker for (worker,) in tx.all(_FORGET)]
        tx.later.append(lambda: self._machine.sweep(gone))
        return ended

    def _mark_gone(self, tx: Transaction, *, expired: bool) -> None:
        now = tx.now()
        found = tx.all(_PRESUMED, (now,))
        dead = [worker for worker, where, boot, _ in found if self._machine.proves_death(worker, where, boot)]
        silent = [worker for worker, *_, is_expired in found if is_expired and expired and worker not in dead]
        for state, workers, is_sure in (("dead", dead, True), ("silent", silent, False)):
            if workers:
                tx.run(_MARK, (state, workers, is_sure, now))

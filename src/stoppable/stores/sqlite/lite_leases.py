"""Workers: their leases, their pending stops, and the end of their runs when they are gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoppable.errors import Fenced
from stoppable.records import RunRecord
from stoppable.stores import rules
from stoppable.stores.base import Intent, WorkerInfo
from stoppable.stores.sql import rows
from stoppable.stores.sql.queries import intents
from stoppable.stores.sql.worker_locks import WorkerLocks, file_name
from stoppable.stores.sqlite import lite_runs
from stoppable.stores.sqlite.lite_transaction import RECORD, LiteTransaction
from stoppable.stores.sqlite.wakeups import Wakeups

# A lease from before the last boot has expired. So has a lease from the future, which is how a reboot looks on a system
# without a boot id.
_EXPIRED = "boot <> :boot OR until < :now OR until - ttl > :now + 1"
_FENCED = "SELECT 1 FROM fenced WHERE worker = :id UNION ALL SELECT 1 FROM workers WHERE id = :id AND state <> 'open'"
_GONE = f"""SELECT {RECORD}, state FROM runs JOIN (SELECT id AS gone, state FROM workers WHERE state <> 'open')
 ON worker = gone WHERE ended_at IS NULL AND NOT (state = 'silent' AND ?) ORDER BY number LIMIT ?"""  # noqa: S608


class LiteLeases:
    """The calls about workers."""

    def __init__(self, clock: Callable[[], float], boot: str, locks: WorkerLocks, wakeups: Wakeups) -> None:
        self._clock = clock
        self._boot = boot
        self._locks = locks
        self._wakeups = wakeups

    def open_worker(self, tx: LiteTransaction, info: WorkerInfo, ttl: float) -> None:
        """Give a process a lease; it takes its lock first, so a lease without a lock is that of a dead worker."""
        if tx.one(_FENCED, {"id": info.id}) is not None:
            raise Fenced(info.id)
        if self._locks.take(info.id):
            tx.undo.append(lambda: self._goodbye(info.id))
        self._wakeups.listen(info.id)
        tx.run(
            "INSERT INTO workers (id, host, pid, boot, until, ttl, state) VALUES (?, ?, ?, ?, ?, ?, 'open') ON CONFLICT"
            " (id) DO UPDATE SET boot = excluded.boot, until = excluded.until, ttl = excluded.ttl",
            (info.id, info.host, info.pid, self._boot, self._clock() + ttl, ttl),
        )

    def heartbeat(self, tx: LiteTransaction, worker: str, ttl: float) -> Sequence[Intent]:
        """Renew a lease, and return the pending stops."""
        lease = tx.one(
            "UPDATE workers SET boot = ?, until = ?, ttl = ? WHERE id = ? AND state = 'open' RETURNING 1",
            (self._boot, self._clock() + ttl, ttl, worker),
        )
        if lease is None:
            raise Fenced(worker)
        return intents(tx, worker)

    def close_worker(self, tx: LiteTransaction, worker: str) -> None:
        """Release a lease."""
        tx.run("UPDATE workers SET state = 'closed' WHERE id = ? AND state = 'open'", (worker,))
        tx.later.append(lambda: self._goodbye(worker))

    def _goodbye(self, worker: str) -> None:
        self._wakeups.unlisten(worker)
        self._locks.drop(worker)

    def reap(self, tx: LiteTransaction, limit: int, expired: bool) -> Sequence[RunRecord]:  # noqa: FBT001 - the store names it
        """End the runs of workers that are gone."""
        self._mark_gone(tx, expired=expired)
        orphans = tx.all(_GONE, (not expired, max(limit, 0)))
        records = []
        for *row, state in orphans:
            number, last = lite_runs.last_of(tuple(row))
            partials = lite_runs.partials(tx, number)
            record = rules.reap_record(
                rows.record(tuple(row)), tx.now(), proven_dead=state != "silent", partials=partials
            )
            records.append(lite_runs.end(tx, number, last, record))
        self._forget(tx)
        return records

    def _mark_gone(self, tx: LiteTransaction, *, expired: bool) -> None:
        values = {"boot": self._boot, "now": self._clock()}
        sql = f"SELECT id, {_EXPIRED} FROM workers WHERE state IN ('open', 'silent')"  # noqa: S608 - our own names
        for worker, is_expired in tx.all(sql, values):
            if self._locks.is_free(worker):
                tx.run("UPDATE workers SET state = 'dead' WHERE id = ?", (worker,))
            elif is_expired and expired:
                tx.run("UPDATE workers SET state = 'silent' WHERE id = ?", (worker,))

    def _forget(self, tx: LiteTransaction) -> None:
        """Delete workers that have neither a lease nor runs, then their files."""
        gone_workers = tx.all(
            "DELETE FROM workers WHERE state <> 'open' AND NOT EXISTS"
            " (SELECT 1 FROM runs WHERE worker = workers.id AND ended_at IS NULL) RETURNING id"
        )
        if gone_workers:
            names = rows.encode([worker for (worker,) in gone_workers])
            tx.run("INSERT OR IGNORE INTO fenced SELECT value FROM json_each(?)", (names,))
            # Only files of workers that this store knew: others in the directory are not ours.
            there = rows.encode(self._locks.names())
            fenced_workers = tx.all(
                "SELECT worker FROM fenced WHERE worker IN (SELECT value FROM json_each(?))", (there,)
            )
            dead = {file_name(worker) for (worker,) in (*gone_workers, *fenced_workers)}
            tx.later.append(lambda: self._locks.sweep(dead))

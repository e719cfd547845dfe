"""Workers: their leases, their pending stops, the proof that one is dead, and the end of its runs then.

An expired lease proves nothing. A death is proven by a free lock in this machine's directory, or by a reboot since;
only replicas on the same machine can see either. Locks of Postgres prove nothing: losing a connection frees them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from stoppable._core.values import new_id
from stoppable._engine.processes.table import boot_id
from stoppable.errors import Fenced, StoreError
from stoppable.records import RunRecord
from stoppable.stores import rules
from stoppable.stores.base import Intent, WorkerInfo
from stoppable.stores.postgres import pg_runs
from stoppable.stores.postgres.pg_runs import Log
from stoppable.stores.postgres.pg_transaction import RECORD, PgTransaction
from stoppable.stores.sql import rows
from stoppable.stores.sql.queries import intents
from stoppable.stores.sql.worker_locks import WorkerLocks, file_name, make_directory


class Machine:
    """The machine of this process: its id, its current boot, and the locks of its workers in one directory.

    The id is made of the directory's id and the host name: containers of one image, or with one volume, must differ.
    """

    def __init__(self, directory: Path) -> None:
        self.locks: WorkerLocks = WorkerLocks(directory)
        self.id: str = hashlib.sha256(f"{_id_of(directory)} {socket.gethostname()}".encode()).hexdigest()[:32]
        self.boot: str = boot_id()

    def proves_death(self, worker: str, machine: str, boot: str) -> bool:
        """Return whether a worker and its children are certainly dead."""
        if machine != self.id:
            return False
        return (bool(boot) and bool(self.boot) and boot != self.boot) or self.locks.is_free(worker)

    def sweep(self, workers: Iterable[str]) -> None:
        """Remove the files of workers that are dead."""
        self.locks.sweep([file_name(worker) for worker in workers])


def default_directory() -> Path:
    """Return the directory of the locks, if the URL names none."""
    return Path(tempfile.gettempdir()) / f"stoppable-{os.geteuid()}-workers"


def _id_of(directory: Path) -> str:
    path = directory / "machine"
    try:
        make_directory(directory)
        with contextlib.suppress(FileExistsError):
            temporary = directory / f"machine.{new_id()}"
            temporary.write_text(new_id())
            try:
                os.link(temporary, path)  # atomically
            finally:
                temporary.unlink()
        return path.read_text()
    except OSError as error:
        raise StoreError(
            f"{directory}: the workers of this machine need a directory for their locks: {error};"
            " give another one with ?locks=/path in the URL of the store"
        ) from error


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


class PgLeases:
    """The calls about workers."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def open_worker(self, tx: PgTransaction, info: WorkerInfo, ttl: float) -> None:
        """Give a process a lease; it takes its lock first, so a lease without a lock is that of a dead worker."""
        tx.lock("worker", info.id)
        if tx.one(_FENCED, {"id": info.id}) is not None:
            raise Fenced(info.id)
        if self._machine.locks.take(info.id):
            tx.undo.append(lambda: self._machine.locks.drop(info.id))
        tx.run(_OPEN, (info.id, info.host, info.pid, self._machine.id, self._machine.boot, tx.now() + ttl, ttl))

    def heartbeat(self, tx: PgTransaction, worker: str, ttl: float) -> Sequence[Intent]:
        """Renew a lease, and return the pending stops."""
        renewed = tx.ask(_RENEW, (tx.now() + ttl, ttl, worker))
        pending = intents(tx, worker)
        if renewed.fetchone() is None:
            raise Fenced(worker)
        return pending

    def close_worker(self, tx: PgTransaction, worker: str) -> None:
        """Release a lease."""
        tx.run("SELECT 1 FROM workers WHERE id = %s FOR UPDATE", (worker,))
        tx.run("UPDATE workers SET state = 'closed' WHERE id = %s AND state = 'open'", (worker,))
        tx.later.append(lambda: self._machine.locks.drop(worker))

    def reap(self, tx: PgTransaction, limit: int, expired: bool) -> Sequence[RunRecord]:  # noqa: FBT001 - the store names it
        """End the runs of workers that are gone."""
        self._mark_gone(tx, expired=expired)
        orphans = tx.all(_GONE, (expired, max(limit, 0)))
        partials = pg_runs.partials(tx, [row[-3] for row in orphans]) if orphans else {}
        ends = []
        for *row, is_truncated, is_dead in orphans:
            log = Log(row[-1], row[-2], is_truncated)
            record = rules.reap_record(
                rows.record(tuple(row)), tx.now(), proven_dead=is_dead, partials=partials.get(log.number, ())
            )
            ends.append((log, record))
        ended = [pg_runs.end(tx, log, record) for log, record in ends]
        gone_workers = [worker for (worker,) in tx.all(_FORGET)]
        tx.later.append(lambda: self._machine.sweep(gone_workers))
        return ended

    def _mark_gone(self, tx: PgTransaction, *, expired: bool) -> None:
        now = tx.now()
        presumed = tx.all(_PRESUMED, (now,))
        dead = [worker for worker, where, boot, _ in presumed if self._machine.proves_death(worker, where, boot)]
        silent = [worker for worker, *_, is_expired in presumed if is_expired and expired and worker not in dead]
        for state, workers, is_sure in (("dead", dead, True), ("silent", silent, False)):
            if workers:
                tx.run(_MARK, (state, workers, is_sure, now))

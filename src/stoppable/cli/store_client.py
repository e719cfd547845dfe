"""The commands about runs without a server: they open the store themselves (``--store``)."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Mode, Status
from stoppable.cli.exits import CommandError, Exit
from stoppable.records import AuditEntry, BulkStop, Event, Filter, Hold, RunRecord, RunSummary, Summaries
from stoppable.stores.memory import MemoryStore
from stoppable.stores.rules import receipt_of
from stoppable.stores.urls import store_of
from stoppable.supervisor.blocking import Supervisor


class StoreClient:
    """What the commands use of a ``Client``, for a store that this process opens.

    The way to stop runs when no server answers: a stop is in the store, and their workers are told, as always.
    """

    def __init__(self, url: str) -> None:
        store = store_of(url)
        if isinstance(store, MemoryStore):
            raise CommandError("a store in memory is visible in its own process only: use a file, or ask the server")
        path: Path | None = getattr(store, "path", None)
        if path is not None and not path.exists():
            raise CommandError(f"no store at {path}: check the path", Exit.NOT_FOUND)
        self._store = store
        self._supervisor = Supervisor(store)
        self._actor = f"local:{_user()}"

    def __enter__(self) -> Self:
        self._supervisor.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._supervisor.__exit__(kind, error, tb)

    def stop(
        self, run_id: str, mode: str = Mode.GRACEFUL, reason: str | None = None, *, grace: float | None = None
    ) -> Receipt:
        """Stop a run with its subtree."""
        return self._supervisor.stop(run_id, mode, reason, self._actor, grace)

    def stop_where(
        self,
        *,
        owner: str | None,
        labels: Mapping[str, str],
        agent: str | None,
        key: str | None,
        all: bool,  # noqa: A002 - as the client has it
        mode: str,
        reason: str | None,
        grace: float | None,
        hold: bool,
        dry_run: bool,
    ) -> BulkStop:
        """Stop every run that matches all that is given."""
        return self._supervisor.stop_where(
            owner=owner,
            labels=labels,
            agent=agent,
            key=key,
            all=all,
            mode=mode,
            reason=reason,
            actor=self._actor,
            grace=grace,
            hold=hold,
            dry_run=dry_run,
            if_unknown=None,
        )

    def holds(self) -> tuple[Hold, ...]:
        """Return the holds that are in force."""
        return tuple(self._supervisor.holds())

    def release(self, hold_id: str) -> None:
        """Remove a hold, so that new runs are allowed again."""
        self._supervisor.release(hold_id, self._actor)

    def get(self, run_id: str) -> RunRecord:
        """Return the record of a run, or raise RunNotFound."""
        return self._supervisor.get(run_id)

    def receipt(self, run_id: str) -> Receipt | None:
        """Return the receipt of the stops of a run so far, or None if it was not stopped."""
        record = self.get(run_id)
        if record.stop is None:
            return None
        answer = Answer.ACCEPTED if record.receipt is None else record.receipt.answer
        return receipt_of(record, answer, record.status, record.ended_at)

    def tree(self, run_id: str) -> tuple[RunSummary, ...]:
        """Return a run and all its descendants, parents before children, with what is in flight in them now."""
        return self._with_in_flight(self._supervisor.tree(run_id))

    def _with_in_flight(self, runs: Sequence[RunSummary]) -> tuple[RunSummary, ...]:
        now = self._store.in_flight([run.id for run in runs if not run.over]).result()
        return tuple(replace(run, in_flight=now.get(run.id, ())) for run in runs)

    def list(
        self,
        *,
        status: Sequence[Status] = (),
        agent: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Summaries:
        """Return the runs that match, newest first, with what is in flight in them now."""
        matching = Filter(status=frozenset(status), agent=agent, owner=owner, labels=labels or {}, key=key)
        page = self._supervisor.list(matching, cursor=cursor, limit=limit)
        return replace(page, runs=self._with_in_flight(page.runs))

    def audit(self, after: int = 0, limit: int = 100) -> tuple[AuditEntry, ...]:
        """Return the audit: who stopped, held and released what."""
        return tuple(self._supervisor.audit(after, limit))

    def events(self, run_id: str, after: int = 0) -> Iterator[Event]:
        """Yield the events of a run after a sequence number until it is over."""
        return self._supervisor.events(run_id, after)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for it
        return "unknown"

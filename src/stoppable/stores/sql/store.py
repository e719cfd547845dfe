"""The Store protocol over the calls of a database: each call becomes a function that a thread of the store runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from stoppable._core.state import Mode
from stoppable._core.stop import Receipt
from stoppable.errors import InvalidArgument
from stoppable.records import (
    AuditEntry,
    Draft,
    Event,
    EventType,
    Filter,
    Hold,
    OutcomeRecord,
    RunRecord,
    RunSummary,
    Selector,
    StopIntent,
    StopResult,
    Summaries,
)
from stoppable.stores.base import Registered, Tail
from stoppable.stores.reply import Reply
from stoppable.stores.sql.requests import StopRequest
from stoppable.stores.sql.rows import Lines

T = TypeVar("T")


class Calls(Protocol):
    """The functions of one database, a module of them: the first argument of each is a transaction or a session."""

    def register(self, tx: Any, record: RunRecord, request: str) -> Registered: ...  # noqa: D102 - as in Store
    def request_stop(self, tx: Any, request: StopRequest) -> StopResult: ...  # noqa: D102
    def acknowledge(self, tx: Any, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> None: ...  # noqa: D102
    def finish(  # noqa: D102
        self, tx: Any, run_id: str, epoch: int, outcome: OutcomeRecord, receipt: Receipt | None, lines: Lines
    ) -> RunRecord: ...
    def append(self, tx: Any, run_id: str, epoch: int, lines: Lines) -> int: ...  # noqa: D102
    def read(self, session: Any, run_id: str, after: int, limit: int) -> Sequence[Event]: ...  # noqa: D102
    def tail(  # noqa: D102
        self, session: Any, after: int, limit: int, types: Collection[EventType], below: str | None
    ) -> Tail: ...
    def in_flight(  # noqa: D102
        self, session: Any, run_ids: Sequence[str], events_kept: int
    ) -> Mapping[str, tuple[str, ...] | None]: ...
    def get(self, session: Any, run_id: str) -> RunRecord: ...  # noqa: D102
    def query(self, session: Any, wanted: Filter, cursor: str | None, limit: int) -> Summaries: ...  # noqa: D102
    def tree(self, session: Any, run_id: str) -> Sequence[RunSummary]: ...  # noqa: D102
    def counts(self, session: Any) -> Mapping[str, int]: ...  # noqa: D102
    def place_hold(self, tx: Any, selector: Selector, intent: StopIntent) -> Hold: ...  # noqa: D102
    def release(self, tx: Any, hold_id: str, actor: str | None) -> Hold: ...  # noqa: D102
    def holds(self, session: Any) -> Sequence[Hold]: ...  # noqa: D102
    def audit(self, session: Any, after: int, limit: int) -> Sequence[AuditEntry]: ...  # noqa: D102
    def purge(self, tx: Any, before: float, limit: int) -> int: ...  # noqa: D102


class SqlStore(ABC):
    """The calls that every database answers alike; a store adds its life, its workers and its wake-ups."""

    _calls: Calls
    _events_kept: int

    @abstractmethod
    def _write(self, call: Callable[..., T], *args: Any) -> Reply[T]:
        """Have a change made, after all that was asked for before."""

    @abstractmethod
    def _read(self, call: Callable[..., T], *args: Any) -> Reply[T]:
        """Have something looked up, after every change that was asked for before."""

    # Runs

    def register(self, record: RunRecord, request: str) -> Reply[Registered]:
        """Store a new run."""
        return self._write(self._calls.register, record, request)

    def request_stop(
        self,
        target: str | Selector,
        intent: StopIntent,
        *,
        idempotency_key: str | None = None,
        hold: bool = False,
        dry_run: bool = False,
        owner: str | None = None,
        if_unknown_hold: bool = False,
        asked_at: float | None = None,
    ) -> Reply[StopResult]:
        """Store a stop, then notify the workers."""
        request = StopRequest(
            target=target,
            intent=intent,
            idempotency_key=idempotency_key,
            hold=hold,
            dry_run=dry_run,
            owner=owner,
            if_unknown_hold=if_unknown_hold,
            asked_at=asked_at,
        )
        return self._write(self._calls.request_stop, request)

    def acknowledge(self, run_id: str, epoch: int, mode: Mode, receipt: Receipt) -> Reply[None]:
        """Record that a gate is closed."""
        return self._write(self._calls.acknowledge, run_id, epoch, mode, receipt)

    def finish(
        self,
        run_id: str,
        epoch: int,
        outcome: OutcomeRecord,
        receipt: Receipt | None,
        events: Sequence[Draft] = (),
    ) -> Reply[RunRecord]:
        """Write the terminal status, if there is none."""
        try:
            lines = Lines(events)
        except InvalidArgument as error:
            return Reply.failed(error)
        return self._write(self._calls.finish, run_id, epoch, outcome, receipt, lines)

    # Events

    def append(self, run_id: str, epoch: int, events: Sequence[Draft]) -> Reply[int]:
        """Append to a run's log."""
        try:
            lines = Lines(events)
        except InvalidArgument as error:
            return Reply.failed(error)
        return self._write(self._calls.append, run_id, epoch, lines)

    def read(self, run_id: str, after: int = 0, limit: int = 1000) -> Reply[Sequence[Event]]:
        """Return a part of a run's log."""
        return self._read(self._calls.read, run_id, after, limit)

    def tail(
        self, after: int = 0, limit: int = 1000, *, types: Collection[EventType] = (), below: str | None = None
    ) -> Reply[Tail]:
        """Return events of many runs in order."""
        return self._read(self._calls.tail, after, limit, types, below)

    def in_flight(self, run_ids: Sequence[str]) -> Reply[Mapping[str, tuple[str, ...] | None]]:
        """Return the open boundaries of live runs."""
        return self._read(self._calls.in_flight, run_ids, self._events_kept)

    # Looking

    def get(self, run_id: str) -> Reply[RunRecord]:
        """Return a record."""
        return self._read(self._calls.get, run_id)

    def query(self, wanted: Filter, cursor: str | None = None, limit: int = 100) -> Reply[Summaries]:
        """Return the runs that match, newest first."""
        return self._read(self._calls.query, wanted, cursor, limit)

    def tree(self, run_id: str) -> Reply[Sequence[RunSummary]]:
        """Return a run and all its descendants."""
        return self._read(self._calls.tree, run_id)

    def counts(self) -> Reply[Mapping[str, int]]:
        """Return how many runs have each status."""
        return self._read(self._calls.counts)

    # Holds, audit, retention

    def place_hold(self, selector: Selector, intent: StopIntent) -> Reply[Hold]:
        """Refuse new starts."""
        return self._write(self._calls.place_hold, selector, intent)

    def release(self, hold_id: str, actor: str | None = None) -> Reply[Hold]:
        """Remove a hold."""
        return self._write(self._calls.release, hold_id, actor)

    def holds(self) -> Reply[Sequence[Hold]]:
        """Return the holds that are in force."""
        return self._read(self._calls.holds)

    def audit(self, after: int = 0, limit: int = 100) -> Reply[Sequence[AuditEntry]]:
        """Return the audit."""
        return self._read(self._calls.audit, after, limit)

    def purge(self, before: float, limit: int = 1000) -> Reply[int]:
        """Delete trees that ended before a time."""
        return self._write(self._calls.purge, before, limit)

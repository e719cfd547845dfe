"""The supervisor for blocking code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, TypeVarTuple, overload

from stoppable._core.outcome import Outcome
from stoppable._core.policy import Limits, Policy
from stoppable._core.policy import seconds as checked_seconds
from stoppable._core.reason import Reason
from stoppable._core.run import Run
from stoppable._core.state import Mode
from stoppable._core.stop import Receipt
from stoppable._engine.agent_functions import with_keywords
from stoppable._engine.blocking import BlockingHandle
from stoppable._engine.handle import RunHandle, Until
from stoppable._engine.open_run import edge_around, refuse_generators
from stoppable.errors import InvalidArgument
from stoppable.records import (
    AuditEntry,
    Event,
    Filter,
    Hold,
    RunRecord,
    RunSummary,
    Selector,
    StopIntent,
    Summaries,
    TreeEvent,
)
from stoppable.stores.base import Store
from stoppable.supervisor.core import SupervisorCore, is_acknowledged, is_over
from stoppable.supervisor.handles import Elsewhere, kept_receipt, never_began, raise_unless_completed, reader_left
from stoppable.supervisor.jobs import Isolation, Job, OnDisconnect, Options
from stoppable.supervisor.merged_events import tree_events_sync
from stoppable.supervisor.recorder import RunLog
from stoppable.supervisor.selection import BulkStop, StopRequest, live_of
from stoppable.supervisor.serialization import outcome_of, shifted
from stoppable.supervisor.signals import shutdown_on_sigterm
from stoppable.supervisor.waiting import events_sync, record_when_sync, records_when_sync

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Ts = TypeVarTuple("Ts")


class Supervisor:
    """``stoppable.Supervisor`` for blocking code: the same methods, and every call blocks its thread."""

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        ttl: float = 30.0,
        keep_days: float | None = None,
        keep_input: bool = True,
        unpickle: bool = True,
    ) -> None:
        self._core = SupervisorCore(store, ttl=ttl, keep_days=keep_days, keep_input=keep_input, unpickle=unpickle)
        self._signals = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._core.open()
        self._signals.enter_context(shutdown_on_sigterm(self._core))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop the runs that this process still executes, wait for their end, and disconnect."""
        self._core.check_opened()
        try:
            self._core.end(self._core.shut_down())
        finally:
            self._signals.close()

    # Starting

    @overload
    def start(
        self,
        agent: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        name: str | None = ...,
        owner: str | None = ...,
        labels: Mapping[str, str] | None = ...,
        run_id: str | None = ...,
        key: str | None = ...,
        limits: Limits | None = ...,
        policy: Policy | None = ...,
        isolation: Isolation = ...,
        on_disconnect: OnDisconnect = ...,
        **kwargs: Any,
    ) -> KeptHandle[T]: ...
    @overload
    def start(
        self,
        agent: Callable[[*Ts], T],
        *args: *Ts,
        name: str | None = ...,
        owner: str | None = ...,
        labels: Mapping[str, str] | None = ...,
        run_id: str | None = ...,
        key: str | None = ...,
        limits: Limits | None = ...,
        policy: Policy | None = ...,
        isolation: Isolation = ...,
        on_disconnect: OnDisconnect = ...,
        **kwargs: Any,
    ) -> KeptHandle[T]: ...
    def start(  # type: ignore[misc]  # mypy: *args: *Ts is never *args: Any
        self,
        agent: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        run_id: str | None = None,
        key: str | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        isolation: Isolation = "auto",
        on_disconnect: OnDisconnect = "keep",
        **kwargs: Any,
    ) -> KeptHandle[Any]:
        """Start an agent as a run on a new thread; when this returns, the run is in the store."""
        options = Options(
            name=name,
            owner=owner,
            labels=labels,
            run_id=run_id,
            key=key,
            limits=limits,
            policy=policy,
            isolation=isolation,
            on_disconnect=on_disconnect,
        )
        job = self._core.job(with_keywords(agent, args, kwargs), args, options, in_loop=False)
        log = self._register(job)
        if log is None:
            return self.handle(job.run.id)
        return SupervisedHandle(self, job.launch(), log, on_disconnect)

    def open_run(
        self,
        name: str,
        *,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        run_id: str | None = None,
        key: str | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        on_disconnect: OnDisconnect = "keep",
    ) -> contextlib.AbstractContextManager[Run]:
        """Make a block of existing code a run in the store; it ends as ``stoppable.open_run`` does.

        It cannot span the yields of a generator that other code reads: start that generator, and read ``stream()``.
        """
        refuse_generators(sys._getframe(1), "open_run()")  # before anything is in the store
        options = Options(
            owner=owner,
            labels=labels,
            run_id=run_id,
            key=key,
            limits=limits,
            policy=policy,
            on_disconnect=on_disconnect,
        )
        return self._open_run(name, options)

    @contextlib.contextmanager
    def _open_run(self, name: str, options: Options) -> Iterator[Run]:
        job = Job.around(name, options)
        log = self._register(job)
        if log is None:
            job.refuse(self._core.store.get(job.run.id).result())
        try:
            with edge_around(job.run, options.limits) as run:
                yield run
        finally:
            if job.run.outcome is not None:
                self._core.recorder.kept(log).result()

    def _register(self, job: Job) -> RunLog | None:
        log, reply = self._core.register(job)
        try:
            answer = reply.result()
        except BaseException:
            self._core.abandon(log, reply)
            raise
        return log if self._core.registered(log, answer) else None

    # Stopping

    @overload
    def stop(
        self,
        run_id: str,
        mode: str = ...,
        reason: Reason | str | None = ...,
        actor: str | None = ...,
        grace: float | None = ...,
        *,
        wait: float | None = ...,
        owner: str | None = ...,
        if_unknown_hold: bool | None = ...,
    ) -> Receipt: ...
    @overload
    def stop(
        self,
        run_id: None = ...,
        mode: str = ...,
        reason: Reason | str | None = ...,
        actor: str | None = ...,
        grace: float | None = ...,
        *,
        key: str,
        wait: float | None = ...,
        owner: str | None = ...,
        if_unknown_hold: bool | None = ...,
        idempotency_key: str | None = ...,
    ) -> BulkStop: ...
    def stop(
        self,
        run_id: str | None = None,
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
        *,
        key: str | None = None,
        wait: float | None = None,
        owner: str | None = None,
        if_unknown_hold: bool | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt | BulkStop:
        """Stop a run or a conversation; when this returns, the stop is in the store (G14)."""
        core = self._core
        intent = core.intent(mode, reason, actor, grace)
        if key is not None:
            request = core.conversation(
                run_id, key, owner, if_unknown_hold=if_unknown_hold, idempotency_key=idempotency_key
            )
            return self._stop_all(request, intent, wait)
        target = core.checked_id(run_id, idempotency_key)
        wait = None if wait is None else checked_seconds(wait, "wait")
        asked = core.ask(StopRequest(target, owner=owner, if_unknown_hold=bool(if_unknown_hold)), intent)
        result = asked.reply.result()
        receipt = core.answer(target, result, intent, asked.told)
        seconds = core.worth_waiting(result, receipt, wait)
        if seconds is None:
            return receipt
        record = record_when_sync(core.store, target, is_over if wait else is_acknowledged, seconds)
        return core.receipt(record, receipt.answer)

    def stop_where(
        self,
        *,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        key: str | None = None,
        all: bool = False,  # noqa: A002 - reads naturally
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
        hold: bool = False,
        dry_run: bool = False,
        wait: float | None = None,
        if_unknown_hold: bool | None = False,
        idempotency_key: str | None = None,
        within: str | None = None,
    ) -> BulkStop:
        """Stop every run that matches all given criteria, with its subtree, and return the receipts."""
        intent = self._core.intent(mode, reason, actor, grace)
        selector = Selector(owner=owner, labels=labels or {}, name=name, key=key, all=all)
        request = StopRequest(
            selector,
            owner=within,
            hold=hold,
            dry_run=dry_run,
            if_unknown_hold=if_unknown_hold,
            idempotency_key=idempotency_key,
        )
        return self._stop_all(request, intent, wait)

    def _stop_all(self, request: StopRequest, intent: StopIntent, wait: float | None) -> BulkStop:
        core = self._core
        wait = None if wait is None else checked_seconds(wait, "wait")
        asked = core.ask(request, intent)
        bulk = core.bulk(asked.reply.result(), intent, asked.told, dry_run=request.dry_run)
        run_ids, seconds = core.unsettled(bulk, wait)
        if request.dry_run or not run_ids:
            return bulk
        records = records_when_sync(core.store, run_ids, is_over if wait else is_acknowledged, seconds)
        return core.settled(bulk, records)

    def hold(
        self,
        *,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        key: str | None = None,
        all: bool = False,  # noqa: A002 - reads naturally
        reason: Reason | str | None = None,
        actor: str | None = None,
    ) -> Hold:
        """Refuse new runs that match all given criteria, without stopping any."""
        selector = Selector(owner=owner, labels=labels or {}, name=name, key=key, all=all)
        intent = self._core.intent(Mode.GRACEFUL, reason, actor, None)
        return self._core.store.place_hold(selector, intent).result()

    def release(self, hold_id: str, actor: str | None = None) -> Hold:
        """Remove a hold, so that new runs are allowed again."""
        return self._core.store.release(hold_id, actor).result()

    # Queries

    def get(self, run_id: str) -> RunRecord:
        """Return the record of a run, or raise RunNotFound."""
        return self._core.store.get(run_id).result()

    def find(self, key: str, *, owner: str | None = None) -> Sequence[RunSummary]:
        """Return summaries of the live runs of a conversation, newest first, in whatever process they run."""
        wanted, cursor = live_of(key, owner), None
        found: list[RunSummary] = []
        while True:
            page = self._core.store.query(wanted, cursor, 1000).result()
            found += page.runs
            cursor = page.cursor
            if cursor is None:
                return found

    def handle(self, run_id: str) -> KeptHandle[Any]:
        """Return a handle for a run of the store."""
        return StoredHandle(self, run_id)

    @overload
    def events(self, run_id: str, after: int = ..., *, tree: Literal[False] = ...) -> Iterator[Event]: ...
    @overload
    def events(self, run_id: str, after: int = ..., *, tree: Literal[True]) -> Iterator[TreeEvent]: ...
    def events(self, run_id: str, after: int = 0, *, tree: bool = False) -> Iterator[Event] | Iterator[TreeEvent]:
        """Yield the events of a run after a sequence number: past events first, then live ones, until the run ends.

        With ``tree``, include the runs below it. Each event then has a ``place``, and ``after`` is such a place.
        """
        if tree:
            return tree_events_sync(self._core.store, run_id, after)
        return events_sync(self._core.store, run_id, after)

    def list(self, wanted: Filter | None = None, *, cursor: str | None = None, limit: int = 100) -> Summaries:
        """Return summaries of the matching runs, newest first; ``get`` returns a whole record."""
        return self._core.store.query(wanted or Filter(), cursor, limit).result()

    def tree(self, run_id: str) -> Sequence[RunSummary]:
        """Return summaries of a run and its descendants, parents before children; ``get`` returns a whole record."""
        return self._core.store.tree(run_id).result()

    def holds(self) -> Sequence[Hold]:
        """Return the holds that are in force."""
        return self._core.store.holds().result()

    def audit(self, after: int = 0, limit: int = 100) -> Sequence[AuditEntry]:
        """Return the audit log: who stopped, held and released what."""
        return self._core.store.audit(after, limit).result()


class Shared(Supervisor):
    """A view of a supervisor that is opened and closed elsewhere (``Supervisor.blocking``)."""

    def __init__(self, core: SupervisorCore) -> None:
        self._core = core
        self._signals = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Refuse to enter: the view is open as long as its supervisor."""
        raise InvalidArgument("do not enter this view: it is open while its supervisor is")

    def close(self) -> None:
        """Refuse to close: other code uses the supervisor."""
        raise InvalidArgument("do not close this view: close its supervisor")


class KeptHandle(BlockingHandle[T_co], Generic[T_co]):
    """The common part of both kinds of blocking handle."""

    __slots__ = ("_supervisor",)

    _supervisor: Supervisor

    def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
        *,
        wait: float | None = None,
    ) -> Receipt:
        """Stop the run and its subtree; when this returns, the stop is in the store (G14).

        With ``wait`` it waits up to that many seconds for the end.
        """
        return self._supervisor.stop(self.id, mode, reason, actor, grace, wait=wait)

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield the events of the run, past ones first, until it ends."""
        return self._supervisor.events(self.id, after)

    def record(self) -> RunRecord:
        """Return the current record of the run."""
        return self._supervisor.get(self.id)


class SupervisedHandle(KeptHandle[T_co], Generic[T_co]):
    """A run that this process executes; its stops and its end are stored before the caller learns of them."""

    __slots__ = ("_log", "_on_disconnect")

    def __init__(
        self, supervisor: Supervisor, held: RunHandle[T_co], log: RunLog, on_disconnect: OnDisconnect = "keep"
    ) -> None:
        super().__init__(held._run, held._channel)
        self._supervisor = supervisor
        self._log = log
        self._on_disconnect: OnDisconnect = on_disconnect

    def outcome(self) -> Outcome[T_co]:
        """Wait until the end is stored, and return it; never raises because the run was stopped."""
        outcome = super().outcome()
        self._supervisor._core.recorder.kept(self._log).result()
        return outcome

    def stream(self, *, until: Until = "end") -> Iterator[Any]:
        """Yield the items of a generator agent; ends as ``result()`` does.

        A run that was started with ``on_disconnect="stop"`` is stopped if its reader leaves early. With
        ``until="body"`` it ends without an error as soon as the generator has ended, even if the run goes on.
        """
        try:
            yield from super().stream(until=until)
        except (GeneratorExit, KeyboardInterrupt):
            reader_left(self._run, self._on_disconnect)
            raise

    def receipt(self) -> Receipt | None:
        """Return the receipt of the stops of this run so far, or None if it was not stopped."""
        found = self.run.receipt
        if found is not None and found.final and (record := self.record()).over:
            return kept_receipt(record)
        return None if found is None else shifted(found, self._log.offset)


# As in handles.py: attributes of local runs raise an error for runs of other processes.
class StoredHandle(Elsewhere, KeptHandle[Any]):
    """A run of which only the id is known: another process executes it, or it has ended."""

    __slots__ = ("_id",)

    def __init__(self, supervisor: Supervisor, run_id: str) -> None:
        self._supervisor = supervisor
        self._id = run_id

    def receipt(self) -> Receipt | None:
        """Return the stored receipt of this run, or None if it was not stopped."""
        return kept_receipt(self.record())

    def join(self) -> Outcome[Any]:
        """Raise an error: only the process that executes the run can pass an interruption on at once."""
        raise InvalidArgument(f"run {self._id} is not executed by this process: use outcome()")

    def stream(self, *, until: Until = "end") -> Iterator[Any]:  # noqa: ARG002 - as in the base class
        """Raise an error: the items of a generator agent are available only in the process that executes it.

        A run that was stopped before it began has none: the error is RunStopped.
        """
        if never_began(self.record()):
            self.result()
        raise InvalidArgument(f"run {self._id} is not executed by this process: use events()")

    def outcome(self) -> Outcome[Any]:
        """Wait for the end and return what the store has of it."""
        return outcome_of(record_when_sync(self._supervisor._core.store, self._id, is_over))

    def result(self) -> Any:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost."""
        return raise_unless_completed(self._id, self.outcome())

"""The supervisor: starts runs in a store, finds them, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, TypeVarTuple, Unpack, overload

from stoppable._core.boundary import check
from stoppable._core.context import current_run, detached
from stoppable._core.policy import Limits, Policy
from stoppable._core.policy import seconds as checked_seconds
from stoppable._core.reason import Reason
from stoppable._core.run import Run
from stoppable._core.state import Mode
from stoppable._core.stop import Receipt
from stoppable._engine.agent_functions import with_keywords
from stoppable._engine.open_run import edge_around, refuse_generators
from stoppable._engine.threads import to_thread
from stoppable.records import (
    AuditEntry,
    Event,
    EventType,
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
from stoppable.supervisor.core import SHUTDOWN_MARGIN, SupervisorCore, is_acknowledged, is_over
from stoppable.supervisor.handles import KeptHandle, StoredHandle
from stoppable.supervisor.in_flight import in_flight
from stoppable.supervisor.jobs import Isolation, Job, OnDisconnect, Options, StartOptions
from stoppable.supervisor.merged_events import Listener, tree_events
from stoppable.supervisor.prepared import Prepared
from stoppable.supervisor.recorder import RunLog
from stoppable.supervisor.selection import BulkStop, StopRequest, live_of
from stoppable.supervisor.signals import shutdown_on_sigterm
from stoppable.supervisor.waiting import events, record_when, records_when

if TYPE_CHECKING:
    from stoppable.supervisor import blocking

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Supervisor:
    """Starts agents as runs in a store, and stops any run of that store by its id.

    Without a URL the runs are kept in memory; ``sqlite:///runs.db`` keeps them in a file that several processes may
    share. The arguments of a start are kept in its record, up to 100 kB of JSON, unless ``keep_input`` is False. Values
    from an agent process (``isolation="process"``) are unpickled, which requires that you trust the agent;
    ``unpickle=False`` transfers them as JSON.

    Leaving the block stops the runs that this process still executes, with the reason ``shutdown``. SIGTERM does the
    same, unless the program has its own handler.
    """

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

    async def __aenter__(self) -> Self:
        if current_run() is not None:
            check()
        try:
            await _detached(self._core.open)
        except asyncio.CancelledError:
            # The thread that opens it cannot be ended; once it has opened the store, the caller is gone and cannot
            # close it.
            threading.Thread(target=self._core.close, name="stoppable-close", daemon=True).start()
            raise
        self._signals.enter_context(shutdown_on_sigterm(self._core))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def store(self) -> Store:
        """The store that keeps the runs."""
        return self._core.store

    @property
    def is_open(self) -> bool:
        """Whether the supervisor is open."""
        return self._core.lease.is_open

    @property
    def worker(self) -> str:
        """The id of its lease; the records of its runs have it as ``worker``."""
        return self._core.lease.worker

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that this process executes, children included."""
        return tuple(log.run for log in list(self._core.recorder.logs.values()))

    @property
    def is_current(self) -> bool:
        """Whether the lease is renewed in time, so the store can be reached."""
        return self._core.lease.is_current

    @property
    def is_draining(self) -> bool:
        """Whether the supervisor is shutting down and refuses new runs."""
        return self._core.is_closing

    @property
    def blocking(self) -> blocking.Supervisor:
        """The blocking interface of this supervisor, for other threads: that of ``stoppable.sync.Supervisor``."""
        from stoppable.supervisor.blocking import Shared  # noqa: PLC0415 - rarely needed

        return Shared(self._core)

    async def close(self) -> None:
        """Stop the runs that this process still executes, wait for their end, and disconnect.

        It is closed even if the caller is cancelled while it waits.
        """
        self._core.check_opened()
        try:
            await _detached(self._core.end, self._core.shut_down())
        finally:
            self._signals.close()

    async def drain(self) -> None:
        """Stop the runs that this process still executes, with the reason ``shutdown``, and wait for their end."""
        await _detached(self._core.wait_for_end, self._core.shut_down())

    def shut_down(self, mode: str = Mode.GRACEFUL) -> float:
        """Refuse new runs, stop those of this process, and return the seconds after which all have ended.

        Returns at once, and may be called by a signal handler; again with a harder mode it escalates.
        """
        return self._core.shut_down(Mode.of(mode))

    # Starting

    @overload
    async def start(
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
    async def start(
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
    async def start(  # type: ignore[misc]  # mypy: *args: *Ts is never *args: Any
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
        """Start an agent as a run; when this returns, the run is in the store.

        Other keyword arguments are the agent's; pass those that have the name of an option with ``functools.partial``.
        An async agent runs as a task and a blocking one on a thread, unless ``isolation`` says otherwise. The same
        ``run_id`` with the same request is the same run, so a start can be repeated. Raises RunHeld while a hold
        matches it.
        """
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
        return (await self._prepare(with_keywords(agent, args, kwargs), args, options)).launch()

    async def prepare(self, agent: Callable[..., Any], *args: Any, **options: Unpack[StartOptions]) -> Prepared[Any]:
        """Put a run into the store without starting it; ``launch`` on the result starts it.

        For servers that answer requests on one event loop and run agents on another: call ``launch`` on the latter.
        """
        return await self._prepare(agent, args, Options(**options))

    async def _prepare(self, agent: Callable[..., Any], args: tuple[Any, ...], options: Options) -> Prepared[Any]:
        job = self._core.job(agent, args, options, in_loop=True)
        return Prepared(self, job, await self._register(job))

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
    ) -> contextlib.AbstractAsyncContextManager[Run]:
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

    @contextlib.asynccontextmanager
    async def _open_run(self, name: str, options: Options) -> AsyncIterator[Run]:
        job = Job.around(name, options)
        log = await self._register(job)
        if log is None:
            job.refuse(await self._core.store.get(job.run.id))
        try:
            async with edge_around(job.run, options.limits) as run:
                yield run
        finally:
            if job.run.outcome is not None:
                await self._core.recorder.kept(log)

    async def _register(self, job: Job) -> RunLog | None:
        log, reply = self._core.register(job)
        try:
            answer = await reply
        except BaseException:
            self._core.abandon(log, reply)
            raise
        return log if self._core.registered(log, answer) else None

    # Stopping

    @overload
    async def stop(
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
    async def stop(
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
    async def stop(
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
        """Stop a run and its subtree, in whatever process it runs; when this returns, the stop is in the store (G14).

        With ``wait`` it waits up to that many seconds for the end. Raises RunNotFound if the id is unknown or belongs
        to another owner than ``owner``; with ``if_unknown_hold`` the stop waits a minute for its run.

        With a ``key`` instead of an id it stops the live runs of a conversation. If the key has had no run yet, the
        first one that starts before ``waits_until`` of the answer is stopped before it begins, unless
        ``if_unknown_hold`` is False. If its last run has ended, nothing is stopped; with ``if_unknown_hold=True`` the
        next run is, if it starts within seconds. A repeated ``idempotency_key`` returns the first answer, so that a
        retry does not stop the next turn.
        """
        core = self._core
        intent = core.intent(mode, reason, actor, grace)
        if key is not None:
            request = core.conversation(
                run_id, key, owner, if_unknown_hold=if_unknown_hold, idempotency_key=idempotency_key
            )
            return await self._stop_all(request, intent, wait)
        target = core.checked_id(run_id, idempotency_key)
        wait = None if wait is None else checked_seconds(wait, "wait")
        asked = core.ask(StopRequest(target, owner=owner, if_unknown_hold=bool(if_unknown_hold)), intent)
        result = await asked.reply
        receipt = core.answer(target, result, intent, asked.told)
        seconds = core.worth_waiting(result, receipt, wait)
        if seconds is None:
            return receipt
        record = await record_when(core.store, target, is_over if wait else is_acknowledged, seconds)
        return core.receipt(record, receipt.answer)

    async def stop_where(
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
        """Stop every run that matches all given criteria, with its subtree, and return the receipts.

        A run below another match is in the receipt of that one. With ``wait`` it waits up to that many seconds until
        all have ended; without, until their gates are closed, also in other processes, at most one second.

        With ``hold`` new starts that match are refused until ``release``; the hold is placed before the runs are
        listed. With ``dry_run`` nothing is stopped, and the receipts show what would be. Without criteria it raises
        InvalidArgument; ``all=True`` selects every run. ``within`` restricts it to the runs of one owner; a repeated
        ``idempotency_key`` returns the same answer; ``if_unknown_hold`` lets a stop by ``key`` wait for the next run,
        as in ``stop``.
        """
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
        return await self._stop_all(request, intent, wait)

    async def _stop_all(self, request: StopRequest, intent: StopIntent, wait: float | None) -> BulkStop:
        core = self._core
        wait = None if wait is None else checked_seconds(wait, "wait")
        asked = core.ask(request, intent)
        bulk = core.bulk(await asked.reply, intent, asked.told, dry_run=request.dry_run)
        run_ids, seconds = core.unsettled(bulk, wait)
        if request.dry_run or not run_ids:
            return bulk
        records = await records_when(core.store, run_ids, is_over if wait else is_acknowledged, seconds)
        return core.settled(bulk, records)

    async def hold(
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
        return await self._core.store.place_hold(selector, self._core.intent(Mode.GRACEFUL, reason, actor, None))

    async def release(self, hold_id: str, actor: str | None = None) -> Hold:
        """Remove a hold, so that new runs are allowed again."""
        return await self._core.store.release(hold_id, actor)

    # Queries

    async def get(self, run_id: str) -> RunRecord:
        """Return the record of a run, or raise RunNotFound."""
        return await self._core.store.get(run_id)

    async def find(self, key: str, *, owner: str | None = None) -> Sequence[RunSummary]:
        """Return summaries of the live runs of a conversation, newest first, in whatever process they run."""
        wanted, cursor = live_of(key, owner), None
        found: list[RunSummary] = []
        while True:
            page = await self._core.store.query(wanted, cursor, 1000)
            found += page.runs
            cursor = page.cursor
            if cursor is None:
                return found

    def handle(self, run_id: str) -> KeptHandle[Any]:
        """Return a handle for a run of the store."""
        return StoredHandle(self, run_id)

    @overload
    def events(self, run_id: str, after: int = ..., *, tree: Literal[False] = ...) -> AsyncIterator[Event]: ...
    @overload
    def events(self, run_id: str, after: int = ..., *, tree: Literal[True]) -> AsyncIterator[TreeEvent]: ...
    def events(
        self, run_id: str, after: int = 0, *, tree: bool = False
    ) -> AsyncIterator[Event] | AsyncIterator[TreeEvent]:
        """Yield the events of a run after a sequence number: past events first, then live ones, until the run ends.

        With ``tree``, include the runs below it. Each event then has a ``place``, and ``after`` is such a place.
        """
        if tree:
            return tree_events(self._core.store, run_id, after)
        return events(self._core.store, run_id, after)

    def listen(
        self,
        call: Callable[[TreeEvent], object],
        run_id: str | None = None,
        *,
        types: Collection[EventType] = (),
    ) -> Listener:
        """Call a function with each new event of all runs, or of one run and its subtree; ``types`` selects some.

        It is called on a separate thread, one event after the other, until the returned listener or this supervisor is
        closed. Its errors are logged.
        """
        return self._core.listen(call, run_id, types)

    async def list(self, wanted: Filter | None = None, *, cursor: str | None = None, limit: int = 100) -> Summaries:
        """Return summaries of the matching runs, newest first; ``get`` returns a whole record."""
        return await self._core.store.query(wanted or Filter(), cursor, limit)

    async def tree(self, run_id: str) -> Sequence[RunSummary]:
        """Return summaries of a run and its descendants, parents before children; ``get`` returns a whole record."""
        return await self._core.store.tree(run_id)

    async def in_flight(self, run_ids: Iterable[str]) -> Mapping[str, tuple[str, ...] | None]:
        """Return the open boundaries of live runs, without those of their children; None if unknown."""
        return await in_flight(self._core, run_ids)

    async def holds(self) -> Sequence[Hold]:
        """Return the holds that are in force."""
        return await self._core.store.holds()

    async def audit(self, after: int = 0, limit: int = 100) -> Sequence[AuditEntry]:
        """Return the audit log: who stopped, held and released what."""
        return await self._core.store.audit(after, limit)


async def _detached(call: Callable[[*Ts], object], *args: *Ts) -> None:
    """Call a function on a thread and wait for it, even if the surrounding run is stopped."""
    with detached():
        await to_thread(call, *args)


__all__ = ["SHUTDOWN_MARGIN", "BulkStop", "Listener", "Prepared", "StartOptions", "Supervisor"]

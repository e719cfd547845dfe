# Made from ../_async/supervisor.py by `make twins`: change that file, not this one.
"""The supervisor: starts runs in a store, finds them, waits for their changes, and stops them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, TypeVarTuple, Unpack, overload

from stoppable._core import clock
from stoppable._core.run import Run
from stoppable._core.stop import Receipt
from stoppable._core.values import Limits, Mode, Policy, Reason
from stoppable._core.values import seconds as checked_seconds
from stoppable._engine.agent_functions import with_keywords
from stoppable._engine.open_run import edge_around, refuse_generators
from stoppable.errors import RunNotFound
from stoppable.records import (
    AuditEntry,
    BulkStop,
    Event,
    EventType,
    Filter,
    Hold,
    IfUnknown,
    RunRecord,
    RunSummary,
    Selector,
    StopRequest,
    Summaries,
    TreeEvent,
)
from stoppable.stores.base import ANY, Store
from stoppable.supervisor._sync.handles import Prepared, RemoteHandle, StoreHandle
from stoppable.supervisor._sync.primitives import IN_LOOP, News, answer, in_background, open_core
from stoppable.supervisor.core import (
    LOOK_SECONDS,
    Listener,
    SupervisorCore,
    is_acknowledged,
    is_end,
    is_over,
    live_of,
    pauses,
    to_tree_events,
)
from stoppable.supervisor.jobs import Isolation, Job, OnDisconnect, Options, StartOptions
from stoppable.supervisor.log_writer import RunLog
from stoppable.supervisor.signals import shutdown_on_sigterm

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

    def __enter__(self) -> Self:
        open_core(self._core)
        self._signals.enter_context(shutdown_on_sigterm(self._core))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

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
        return tuple(log.run for log in list(self._core.writer.logs.values()))

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
        from stoppable.supervisor.blocking import BlockingView  # noqa: PLC0415 - rarely needed

        return BlockingView(self._core)

    def close(self) -> None:
        """Stop the runs that this process still executes, wait for their end, and disconnect.

        It is closed even if the caller is cancelled while it waits.
        """
        self._core.check_opened()
        try:
            in_background(self._core.end, self._core.shut_down())
        finally:
            self._signals.close()

    def drain(self) -> None:
        """Stop the runs that this process still executes, with the reason ``shutdown``, and wait for their end."""
        in_background(self._core.wait_for_end, self._core.shut_down())

    def shut_down(self, mode: str = Mode.GRACEFUL) -> float:
        """Refuse new runs, stop those of this process, and return the seconds after which all have ended.

        Returns at once, and may be called by a signal handler; again with a harder mode it escalates.
        """
        return self._core.shut_down(Mode.of(mode))

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
    ) -> StoreHandle[T]: ...
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
    ) -> StoreHandle[T]: ...
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
    ) -> StoreHandle[Any]:
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
        return (self._prepare(with_keywords(agent, args, kwargs), args, options)).launch()

    def prepare(self, agent: Callable[..., Any], *args: Any, **options: Unpack[StartOptions]) -> Prepared[Any]:
        """Put a run into the store without starting it; ``launch`` on the result starts it.

        For servers that answer requests on one event loop and run agents on another: call ``launch`` on the latter.
        """
        return self._prepare(agent, args, Options(**options))

    def _prepare(self, agent: Callable[..., Any], args: tuple[Any, ...], options: Options) -> Prepared[Any]:
        job = self._core.job(agent, args, options, in_loop=IN_LOOP)
        return Prepared(self, job, self._register(job))

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
            job.refuse(answer(self._core.store.get(job.run.id)))
        try:
            with edge_around(job.run, options.limits) as run:
                yield run
        finally:
            if job.run.outcome is not None:
                answer(self._core.writer.when_stored(log))

    def _register(self, job: Job) -> RunLog | None:
        log, reply = self._core.register(job)
        try:
            registration = answer(reply)
        except BaseException:
            self._core.abandon(log, reply)
            raise
        return log if self._core.accept_registration(log, registration) else None

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
        if_unknown: IfUnknown = ...,
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
        if_unknown: IfUnknown = ...,
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
        if_unknown: IfUnknown = None,
        idempotency_key: str | None = None,
    ) -> Receipt | BulkStop:
        """Stop a run and its subtree, in whatever process it runs; when this returns, the stop is in the store (G14).

        With ``wait`` it waits up to that many seconds for the end. Raises RunNotFound if the id is unknown or belongs
        to another owner than ``owner``; with ``if_unknown="wait"`` the stop waits a minute for its run.

        With a ``key`` instead of an id it stops the live runs of a conversation. If the key has had no run yet, the
        first one that starts before ``waits_until`` of the answer is stopped before it begins, unless
        ``if_unknown`` is ``"ignore"``. If its last run has ended, nothing is stopped; with ``if_unknown="wait"`` the
        next run is, if it starts within seconds. A repeated ``idempotency_key`` returns the first answer, so that a
        retry does not stop the next turn.
        """
        core = self._core
        intent = core.intent(mode, reason, actor, grace)
        if key is not None:
            request = core.conversation(
                run_id, key, intent, owner, if_unknown=if_unknown, idempotency_key=idempotency_key
            )
            return self._stop_all(request, wait)
        target = core.checked_id(run_id, idempotency_key)
        wait = None if wait is None else checked_seconds(wait, "wait")
        submitted = core.submit_stop(StopRequest(target=target, intent=intent, owner=owner, if_unknown=if_unknown))
        result = answer(submitted.reply)
        receipt = core.build_receipt(target, result, submitted, wait)
        seconds = core.wait_seconds(result, receipt, wait)
        if seconds is None:
            return receipt
        record = record_when(core.store, target, is_over if wait else is_acknowledged, seconds)
        return core.receipt(record, receipt.answer)

    def stop_where(
        self,
        *,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        agent: str | None = None,
        key: str | None = None,
        all: bool = False,  # noqa: A002 - reads naturally
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
        hold: bool = False,
        dry_run: bool = False,
        wait: float | None = None,
        if_unknown: IfUnknown = None,
        idempotency_key: str | None = None,
        within: str | None = None,
    ) -> BulkStop:
        """Stop every run that matches all given criteria, with its subtree, and return the receipts.

        A run below another match is in the receipt of that one. With ``wait`` it waits up to that many seconds until
        all have ended; without, until their gates are closed, also in other processes, at most one second.

        With ``hold`` new starts that match are refused until ``release``; the hold is placed before the runs are
        listed. With ``dry_run`` nothing is stopped, and the receipts show what would be. Without criteria it raises
        InvalidArgument; ``all=True`` selects every run. ``within`` restricts it to the runs of one owner; a repeated
        ``idempotency_key`` returns the same answer; ``if_unknown`` lets a stop by ``key`` wait for the next run,
        as in ``stop``.
        """
        intent = self._core.intent(mode, reason, actor, grace)
        selector = Selector(owner=owner, labels=labels or {}, agent=agent, key=key, all=all)
        request = StopRequest(
            target=selector,
            intent=intent,
            owner=within,
            hold=hold,
            dry_run=dry_run,
            if_unknown=if_unknown,
            idempotency_key=idempotency_key,
        )
        return self._stop_all(request, wait)

    def _stop_all(self, request: StopRequest, wait: float | None) -> BulkStop:
        core = self._core
        wait = None if wait is None else checked_seconds(wait, "wait")
        submitted = core.submit_stop(request)
        bulk = core.build_receipts(answer(submitted.reply), submitted, wait, dry_run=request.dry_run)
        run_ids, seconds = core.runs_to_wait_for(bulk, wait)
        if request.dry_run or not run_ids:
            return bulk
        records = records_when(core.store, run_ids, is_over if wait else is_acknowledged, seconds)
        return core.refresh(bulk, records)

    def hold(
        self,
        *,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        agent: str | None = None,
        key: str | None = None,
        all: bool = False,  # noqa: A002 - reads naturally
        reason: Reason | str | None = None,
        actor: str | None = None,
    ) -> Hold:
        """Refuse new runs that match all given criteria, without stopping any."""
        selector = Selector(owner=owner, labels=labels or {}, agent=agent, key=key, all=all)
        intent = self._core.intent(Mode.GRACEFUL, reason, actor, None)
        return answer(self._core.store.place_hold(selector, intent))

    def release(self, hold_id: str, actor: str | None = None) -> Hold:
        """Remove a hold, so that new runs are allowed again."""
        return answer(self._core.store.release(hold_id, actor))

    # Queries

    def get(self, run_id: str) -> RunRecord:
        """Return the record of a run, or raise RunNotFound."""
        return answer(self._core.store.get(run_id))

    def find(self, key: str, *, owner: str | None = None) -> Sequence[RunSummary]:
        """Return summaries of the live runs of a conversation, newest first, in whatever process they run."""
        live_runs, cursor = live_of(key, owner), None
        summaries: list[RunSummary] = []
        while True:
            page = answer(self._core.store.query(live_runs, cursor, 1000))
            summaries += page.runs
            cursor = page.cursor
            if cursor is None:
                return summaries

    def _wait_for_end(self, run_id: str) -> RunRecord:
        return record_when(self._core.store, run_id, is_over)

    def handle(self, run_id: str) -> StoreHandle[Any]:
        """Return a handle for a run of the store."""
        return RemoteHandle(self, run_id)

    @overload
    def events(self, run_id: str, after: int = ..., *, tree: Literal[False] = ...) -> Iterator[Event]: ...
    @overload
    def events(self, run_id: str, after: int = ..., *, tree: Literal[True]) -> Iterator[TreeEvent]: ...
    def events(self, run_id: str, after: int = 0, *, tree: bool = False) -> Iterator[Event] | Iterator[TreeEvent]:
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

    def list(self, wanted: Filter | None = None, *, cursor: str | None = None, limit: int = 100) -> Summaries:
        """Return summaries of the matching runs, newest first; ``get`` returns a whole record."""
        return answer(self._core.store.query(wanted or Filter(), cursor, limit))

    def tree(self, run_id: str) -> Sequence[RunSummary]:
        """Return summaries of a run and its descendants, parents before children; ``get`` returns a whole record."""
        return answer(self._core.store.tree(run_id))

    def in_flight(self, run_ids: Iterable[str]) -> Mapping[str, tuple[str, ...] | None]:
        """Return the open boundaries of live runs, without those of their children; None if unknown."""
        in_flight, elsewhere = self._core.local_in_flight(run_ids)
        if not elsewhere:
            return in_flight
        stored_in_flight = answer(self._core.store.in_flight(elsewhere))
        return {**in_flight, **stored_in_flight}

    def holds(self) -> Sequence[Hold]:
        """Return the holds that are in force."""
        return answer(self._core.store.holds())

    def audit(self, after: int = 0, limit: int = 100) -> Sequence[AuditEntry]:
        """Return the audit log: who stopped, held and released what."""
        return answer(self._core.store.audit(after, limit))


def record_when(
    store: Store, run_id: str, is_so: Callable[[RunRecord], bool], seconds: float | None = None
) -> RunRecord:
    """Return the record once ``is_so`` is true of it, or when the time is over."""
    deadline = None if seconds is None else clock.now() + seconds
    with watching(store, run_id) as news:
        for pause in pauses():
            record = answer(store.get(run_id))
            seconds_left = pause if deadline is None else min(pause, deadline - clock.now())
            if is_so(record) or seconds_left <= 0:
                return record
            news.wait(seconds_left)
    raise AssertionError("the pauses never end")


def records_when(
    store: Store, run_ids: Sequence[str], is_so: Callable[[RunRecord], bool], seconds: float
) -> dict[str, RunRecord]:
    """Return the records of many runs once ``is_so`` is true of each, or when the time is over.

    Runs that were purged meanwhile are left out.
    """
    deadline = clock.now() + seconds
    records: dict[str, RunRecord] = {}
    pending = dict.fromkeys(run_ids)
    with watching(store, *run_ids) as news:
        changed: Iterable[str] = run_ids
        while True:
            for run_id, reply in [(run_id, store.get(run_id)) for run_id in changed]:
                try:
                    records[run_id] = answer(reply)
                except RunNotFound:
                    records.pop(run_id, None)
                    pending.pop(run_id, None)
                else:
                    if is_so(records[run_id]):
                        pending.pop(run_id, None)
            seconds_left = deadline - clock.now()
            if not pending or seconds_left <= 0:
                return records
            news_of = news.wait(min(seconds_left, LOOK_SECONDS))
            changed = [run_id for run_id in news_of or tuple(pending) if run_id in pending]


def events(store: Store, run_id: str, after: int = 0) -> Iterator[Event]:
    """Yield the events of a run after a sequence number: past events first, then live ones, until the run ends.

    A slow reader delays nothing else, because it reads from the store.
    """
    with watching(store, run_id) as news:
        while True:
            record = answer(store.get(run_id))
            page = answer(store.read(run_id, after))
            for event in page:
                after = event.seq
                yield event
                if event.type is EventType.DONE:
                    return
            if not page:
                if record.over and after >= record.last_event:
                    return  # the position is after the end
                news.wait(LOOK_SECONDS)


def tree_events(store: Store, run_id: str, after: int = 0) -> Iterator[TreeEvent]:
    """Yield the events of a run and all its descendants after a place: past events first, then live ones.

    It ends with the end of the run itself, which comes after the ends of the runs below it.
    """
    with watching(store, ANY) as news:
        while True:
            record = answer(store.get(run_id))
            tail = answer(store.tail(after, below=run_id))
            for event in to_tree_events(tail):
                yield event
                if is_end(event, run_id):
                    return
            after = tail.place
            if not tail.has_more:
                if record.over:
                    return  # the position is after the end
                news.wait(LOOK_SECONDS)


@contextlib.contextmanager
def watching(store: Store, *run_ids: str) -> Iterator[News]:
    """Subscribe to changes of runs while the block runs."""
    news = News()
    subscriptions = [store.watch(run_id, partial(news.tell, run_id)) for run_id in run_ids]
    try:
        yield news
    finally:
        for subscription in subscriptions:
            subscription.close()

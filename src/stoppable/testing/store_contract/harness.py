"""What the tests of the contract use: a store with a clock that tests control, and short names for its calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Mode, Reason, Rung, Status
from stoppable.records import (
    Draft,
    Event,
    EventType,
    OutcomeRecord,
    RunRecord,
    Selector,
    StopIntent,
    StopRequest,
    StopResult,
)
from stoppable.stores.base import EVENTS_KEPT, Intent, Registration, Store, StoreFuture, WorkerInfo

E = TypeVar("E", bound=BaseException)

ANSWERS_WITHIN = 15.0
"""After how many seconds a call without a result counts as lost."""

TTL = 30.0


class StoreClock:
    """A clock for stores whose time passes only when a test advances it."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self._now += seconds


class StoreHarness(ABC):
    """A store for each test, which is made at its first use and closed after the test."""

    events_kept: int = EVENTS_KEPT
    """After how many events the store truncates a log; tests are faster with a smaller number."""

    clock: StoreClock
    _stores: list[Store]

    @abstractmethod
    def make_store(self, clock: StoreClock) -> Store:
        """Return a new, empty store that uses this clock, or whose clock ``advance()`` moves; not yet open."""

    def advance(self, seconds: float) -> None:
        """Let time pass for the store."""
        self.clock.advance(seconds)

    def setup_method(self) -> None:
        """Begin a test."""
        self._stores = []
        self.clock = StoreClock()

    def teardown_method(self) -> None:
        """Close what the test opened."""
        for store in self._stores:
            store.close()

    @property
    def store(self) -> Store:
        """The store under test."""
        return self._stores[0] if self._stores else self.open_store(self.make_store(self.clock))

    def open_store(self, store: Store) -> Store:
        """Open a store that is closed after the test."""
        store.open()
        self._stores.append(store)
        return store

    # Workers and runs

    def worker(self, worker: str = "w", ttl: float = TTL) -> str:
        """Open a worker."""
        answer(self.store.open_worker(WorkerInfo(id=worker, host="contract"), ttl))
        return worker

    def register(self, run_id: str, *, request: str = "r", worker: str = "w", **fields: Any) -> Registration:
        """Register a run of a worker that is open."""
        record = RunRecord(id=run_id, worker=worker, **{"name": "agent", **fields})
        return answer(self.store.register(record, request))

    def start(self, run_id: str, *, worker: str = "w", running: bool = True, **fields: Any) -> RunRecord:
        """Open a worker or renew its lease, register a run of it, and let it run."""
        self.worker(worker)
        record = self.register(run_id, worker=worker, **fields).record
        if running:
            self.append(record, status(Status.RUNNING))
        return self.get(run_id)

    def append(self, record: RunRecord, *drafts: Draft) -> int:
        """Append to a run's log."""
        return answer(self.store.append(record.id, record.epoch, drafts))

    def get(self, run_id: str) -> RunRecord:
        """Return a record as it is now."""
        return answer(self.store.get(run_id))

    def log(self, run_id: str) -> Sequence[Event]:
        """Return all events of a run."""
        events: list[Event] = []
        while page := answer(self.store.read(run_id, len(events))):
            events += page
        return events

    # Stops and ends

    def stop(
        self, target: str | Selector, mode: Mode = Mode.GRACEFUL, message: str = "enough", **how: Any
    ) -> StopResult:
        """Request a stop."""
        return answer(self.store.request_stop(StopRequest(target=target, intent=intent(mode, message), **how)))

    def intents(self, worker: str = "w") -> dict[str, StopIntent]:
        """Return the pending stops that a heartbeat returns."""
        pending_stops: Sequence[Intent] = answer(self.store.heartbeat(worker, TTL))
        hinted_stops: Sequence[Intent] = answer(self.store.intents(worker))
        assert list(hinted_stops) == list(pending_stops), "a hint tells what a heartbeat does"
        return {each.run_id: each.stop for each in pending_stops}

    def acknowledge(self, record: RunRecord, mode: Mode = Mode.GRACEFUL) -> None:
        """Acknowledge a stop."""
        answer(self.store.acknowledge(record.id, record.epoch, mode, receipt(record)))

    def finish(self, record: RunRecord, status: Status = Status.COMPLETED, **fields: Any) -> RunRecord:
        """Report the end of a run."""
        return answer(self.store.finish(record.id, record.epoch, OutcomeRecord(status=status, **fields), None))

    def reap(self, limit: int = 100, *, expired: bool = True) -> dict[str, Status]:
        """Reap, and return the status of each run that it ended."""
        return {record.id: record.status for record in answer(self.store.reap(limit, expired=expired))}


T = TypeVar("T")


def answer(future: StoreFuture[T]) -> T:
    """Return the result of a call."""
    return future.result(ANSWERS_WITHIN)


def list_of(future: StoreFuture[Sequence[T]]) -> list[T]:
    """Return the result of a call as a list."""
    return list(future.result(ANSWERS_WITHIN))


def assert_refused(error: type[E], call: Callable[..., StoreFuture[Any]], *args: Any, **kwargs: Any) -> E:
    """Make a call that must raise an error, and return the error."""
    try:
        result = answer(call(*args, **kwargs))
    except error as refusal:
        return refusal
    raise AssertionError(f"it was not refused with {error.__name__}, and returned {result!r}")


def intent(mode: Mode = Mode.GRACEFUL, message: str = "enough", actor: str = "ann") -> StopIntent:
    """Return a stop."""
    return StopIntent(mode=mode, reason=Reason(message=message, actor=actor, at=5.0))


def receipt(record: RunRecord, *in_flight: str, mode: Mode = Mode.GRACEFUL) -> Receipt:
    """Return the receipt that a worker sends with an acknowledgement."""
    return Receipt(
        run_id=record.id, answer=Answer.ACCEPTED, status=Status.STOPPING, mode=mode, in_flight=in_flight or ("llm:ask",)
    )


def status(value: Status | str) -> Draft:
    """Return the event of a status."""
    return Draft(type=EventType.STATUS, data={"status": str(value)})


def progress(**data: Any) -> Draft:
    """Return an event that a run emits."""
    return Draft(type=EventType.PROGRESS, data=data)


def types_of(log: Sequence[Event]) -> list[str]:
    """Return the types of the events of a log."""
    return [event.type.value for event in log]


def is_dense(log: Sequence[Event]) -> bool:
    """Return whether the numbers of a log start at 1 without a gap (I7)."""
    return [event.seq for event in log] == list(range(1, len(log) + 1))


def is_born_stopped(record: RunRecord, stop: StopIntent) -> bool:
    """Return whether a stop came before a run, so that its body never runs."""
    assert record.outcome is not None, f"{record.id} is {record.status}"
    return (
        (record.status, record.stop, record.acknowledged) == (Status.STOPPED, stop, stop.mode)
        and (record.outcome.reason, record.outcome.rung) == (stop.reason, Rung.SIGNAL)
        and record.started_at is None
        and record.receipt is not None
        and record.receipt.final
    )

"""The store in memory keeps the contract of stores."""

from stoppable import Mode
from stoppable.records import Draft, EventType, RunRecord, StopIntent, StopRequest
from stoppable.stores.base import KEYS_KEPT, TOMBSTONE_SECONDS, WorkerInfo, wall_clock
from stoppable.stores.memory import MemoryStore
from stoppable.testing import DurableStoreContract, StoreClock


class TestMemoryStore(DurableStoreContract):
    """It is gone with its process, but may be opened and closed, and shared, within it."""

    events_kept = 300  # more than any other test adds

    def make_store(self, clock):
        self.kept = MemoryStore(clock, events_kept=self.events_kept)
        return self.kept

    def another_store(self, clock):
        return self.kept


def answered(reply):
    return reply.result(10)


def test_the_first_moment_of_a_clock_is_a_time_like_any_other():
    """Zero is not nothing: what happened then does not happen again later."""
    clock = StoreClock(0.0)
    store = MemoryStore(clock)
    answered(store.open_worker(WorkerInfo(id="w"), 100))
    answered(store.register(RunRecord(id="a", name="agent", worker="w"), "r"))
    answered(store.append("a", 1, [Draft(type=EventType.STATUS, data={"status": "running"})]))
    answered(store.request_stop(StopRequest(target="a", intent=StopIntent(mode=Mode.GRACEFUL))))
    clock.advance(5)
    answered(store.request_stop(StopRequest(target="a", intent=StopIntent(mode=Mode.KILL))))
    record = answered(store.get("a"))
    assert (record.started_at, record.stop_requested_at) == (0.0, 0.0)


def test_stops_that_waited_in_vain_are_forgotten():
    clock = StoreClock()
    store = MemoryStore(clock)
    for number in range(100):
        answered(store.request_stop(StopRequest(target=f"never {number}", if_unknown="wait")))
        clock.advance(TOMBSTONE_SECONDS / 4)
    assert len(store._tombstones._waiting) < 10


def test_the_keys_of_stops_are_forgotten_with_the_runs_and_a_day_later():
    clock = StoreClock()
    store = MemoryStore(clock)
    answered(store.open_worker(WorkerInfo(id="w"), 100))
    answered(store.register(RunRecord(id="a", name="agent", worker="w"), "r"))
    answered(store.request_stop(StopRequest(target="a", idempotency_key="k")))
    clock.advance(KEYS_KEPT - 1)
    answered(store.purge(store.now()))
    assert (
        answered(store.request_stop(StopRequest(target="a", intent=StopIntent(mode=Mode.KILL), idempotency_key="k")))
        .answers[0]
        .answer
        == "accepted"
    )
    clock.advance(2)
    answered(store.purge(store.now()))
    assert (
        answered(store.request_stop(StopRequest(target="a", intent=StopIntent(mode=Mode.KILL), idempotency_key="k")))
        .answers[0]
        .answer
        == "escalated"
    )


def test_the_wall_clock_ends_no_lease():
    store = MemoryStore()
    store.open_worker(WorkerInfo(id="w"), 30).result()
    store.register(RunRecord(id="a", name="agent", worker="w"), "r").result()
    store._clock = lambda: wall_clock() + 3600  # somebody sets it
    assert store.reap().result() == []
    store.heartbeat("w", 30).result()

"""Tests of a store that outlives its process, or that several processes share."""

from __future__ import annotations

import threading
from abc import abstractmethod
from unittest import SkipTest

from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer
from stoppable.errors import Fenced, RunConflict, RunHeld
from stoppable.records import Filter, OutcomeRecord, RunRecord, Selector
from stoppable.stores.base import Store
from stoppable.testing.store_contract.harness import (
    ANSWERS_WITHIN,
    StoreClock,
    StoreHarness,
    answer,
    intent,
    is_dense,
    listed,
    progress,
    refused,
    types_of,
)
from stoppable.testing.store_contract.together import THREADS, at_once


class Durable(StoreHarness):
    """Two stores over the same data."""

    @abstractmethod
    def another_store(self, clock: StoreClock) -> Store:
        """Return another store over the data of the first, as another process would make it; not yet open."""

    def die(self, worker: str, *run_ids: str) -> None:  # noqa: ARG002 - for those that override it
        """Start a process that opens a worker with a long lease and registers runs of it; then kill the process.

        For a store that can prove a death; one that cannot leaves this as it is.
        """
        raise SkipTest("this store proves no death: a worker without a lease is lost")

    def reopened(self) -> Store:
        """Close the store and open another one over its data."""
        self.store.close()
        self._stores.clear()
        return self.opened(self.another_store(self.clock))

    def test_what_was_answered_is_there_after_the_store_was_closed(self) -> None:
        """G14."""
        self.start("a", owner="ann", labels={"team": "x"})
        self.start("child", parent_id="a", running=False)
        over = self.finish(self.start("over"), result=[1])
        self.stop("a", Mode.IMMEDIATE, "enough", idempotency_key="k")
        kept = [self.get(run_id) for run_id in ("a", "child")]
        before = answer(self.store.tree("a")), self.log("a"), listed(self.store.audit())
        self.reopened()
        assert (answer(self.store.tree("a")), self.log("a"), listed(self.store.audit())) == before
        assert [self.get(run_id) for run_id in ("a", "child")] == kept
        assert self.get("over") == over
        assert [record.id for record in answer(self.store.query(Filter())).runs] == ["over", "child", "a"]
        assert set(self.intents()) == {"a", "child"}

    def test_promises_hold_after_the_store_was_closed(self) -> None:
        """Requests, keys, holds, stops that arrived before their runs, and fenced workers."""
        record = self.start("a")
        self.stop("a", idempotency_key="k")
        hold = answer(self.store.place_hold(Selector(owner="ann"), intent()))
        self.stop("first", Mode.KILL, if_unknown_hold=True)
        self.worker("gone")
        answer(self.store.close_worker("gone"))
        self.reopened()
        assert not self.register("a").created
        refused(RunConflict, self.store.register, RunRecord(id="a", name="agent", worker="w"), "another")
        assert [each.answer for each in self.stop("a", Mode.KILL, idempotency_key="k").answers] == [Answer.ACCEPTED]
        assert listed(self.store.holds()) == [hold]
        refused(RunHeld, self.store.register, RunRecord(id="b", name="agent", owner="ann", worker="w"), "r")
        assert self.register("first").record.status is Status.STOPPED
        refused(Fenced, self.store.heartbeat, "gone", 10)
        assert self.append(record, progress()) == self.get("a").last_event

    def test_what_was_asked_for_is_finished_before_the_store_closes(self) -> None:
        record = self.start("a", running=False)
        for step in range(50):
            self.store.append("a", record.epoch, [progress(step=step)])
        self.store.request_stop("a", intent())
        self.reopened()
        assert [event.data["step"] for event in self.log("a")] == list(range(50))
        assert self.get("a").stop == intent()

    def test_a_worker_whose_process_died_is_proven_dead_while_its_lease_lasts(self) -> None:
        """G8: only then are its runs failed, or stopped if a stop was pending."""
        self.start("alive")
        self.die("gone", "a", "b")
        self.stop("b")
        assert self.reap(expired=False) == {"a": Status.FAILED, "b": Status.STOPPED}
        assert self.get("alive").status is Status.RUNNING
        refused(Fenced, self.store.heartbeat, "gone", 30.0)
        assert self.reap(expired=False) == {}

    def test_leases_go_on_while_the_store_is_closed(self) -> None:
        self.worker(ttl=10)
        self.register("a")
        self.reopened()
        self.advance(9)
        assert self.reap() == {}
        self.advance(2)
        assert self.reap() == {"a": Status.LOST}

    def test_a_change_made_in_another_process_wakes_those_who_watch(self) -> None:
        record = self.start("a")
        other = self.opened(self.another_store(self.clock))
        woken = threading.Event()
        subscription = self.store.watch("a", woken.set)
        answer(other.append("a", record.epoch, [progress()]))
        assert woken.wait(ANSWERS_WITHIN)
        woken.clear()
        answer(other.finish("a", record.epoch, OutcomeRecord(status=Status.COMPLETED), None))
        assert woken.wait(ANSWERS_WITHIN)
        assert self.get("a").status is Status.COMPLETED
        subscription.close()

    def test_a_stop_made_in_another_process_wakes_the_worker(self) -> None:
        self.start("a")
        other = self.opened(self.another_store(self.clock))
        woken = threading.Event()
        subscription = self.store.hints("w", woken.set)
        answer(other.request_stop("a", intent()))
        assert woken.wait(ANSWERS_WITHIN)
        assert self.intents() == {"a": intent()}
        subscription.close()

    def test_of_many_ends_in_two_processes_one_wins(self) -> None:
        """I1, G2."""
        stores = [self.store, self.opened(self.another_store(self.clock))]
        for round_ in range(10):
            record = self.start(f"run {round_}")

            def end(thread: int, record: RunRecord = record) -> object:
                outcome = OutcomeRecord(status=Status.COMPLETED, result=thread)
                kept = answer(stores[thread % 2].finish(record.id, record.epoch, outcome, None)).outcome
                return kept and kept.result

            assert len(set(at_once(end))) == 1
            assert types_of(self.log(record.id)).count("late") == THREADS - 1

    def test_events_added_in_two_processes_have_dense_numbers(self) -> None:
        """I7."""
        stores = [self.store, self.opened(self.another_store(self.clock))]
        record = self.start("a", running=False)

        def add(thread: int) -> list[int]:
            store = stores[thread % 2]
            return [answer(store.append("a", record.epoch, [progress(thread=thread)])) for _ in range(20)]

        numbers = [number for each in at_once(add) for number in each]
        assert sorted(numbers) == list(range(1, 20 * THREADS + 1))
        assert is_dense(self.log("a"))

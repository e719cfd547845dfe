"""Tests of leases: a worker with a lease learns of every stop; without it, its runs are ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from stoppable._core.values import Mode, Rung, Status
from stoppable.errors import Fenced
from stoppable.records import Draft, EventType, Filter, OutcomeRecord
from stoppable.stores.base import Intent, StoreFuture, WorkerInfo
from stoppable.testing.store_contract.harness import (
    ANSWERS_WITHIN,
    StoreHarness,
    answer,
    assert_refused,
    intent,
    is_dense,
    progress,
    receipt,
    types_of,
)

OMITTED: dict[str, str | None] = {"delta": None, "omitted": "too large"}


class WorkerContract(StoreHarness):
    """``open_worker``, ``heartbeat``, ``close_worker``, ``hints`` and ``reap``."""

    # Heartbeats

    def test_a_heartbeat_returns_a_stop_until_it_is_acknowledged(self) -> None:
        record = self.start("a")
        self.start("b")
        assert self.intents() == {}
        self.stop("a")
        for _ in range(3):
            assert self.intents() == {"a": intent()}
        self.acknowledge(record)
        assert self.intents() == {}

    def test_a_heartbeat_returns_the_stops_of_the_whole_subtree(self) -> None:
        self.start("a")
        self.start("child", parent_id="a")
        self.start("leaf", parent_id="child", running=False)
        self.stop("a")
        assert self.intents() == dict.fromkeys(("a", "child", "leaf"), intent())

    def test_a_stop_that_was_acknowledged_comes_again_when_it_gets_harder(self) -> None:
        record = self.start("a")
        self.stop("a")
        self.acknowledge(record)
        self.stop("a", Mode.KILL)
        assert self.intents() == {"a": intent(Mode.KILL)}
        self.acknowledge(record, Mode.GRACEFUL)
        assert self.intents() == {"a": intent(Mode.KILL)}
        self.acknowledge(record, Mode.KILL)
        assert self.intents() == {}

    def test_a_heartbeat_returns_only_stops_of_the_workers_own_runs(self) -> None:
        self.start("a", worker="one")
        self.start("child", worker="other", parent_id="a")
        self.stop("a")
        assert set(self.intents("one")) == {"a"}
        assert set(self.intents("other")) == {"child"}

    def test_a_heartbeat_returns_no_stop_of_a_run_that_is_over(self) -> None:
        record = self.start("a")
        self.stop("a")
        self.finish(record, Status.STOPPED)
        assert self.intents() == {}

    def test_a_worker_without_a_lease_is_fenced(self) -> None:
        assert_refused(Fenced, self.store.heartbeat, "nobody", 10)
        self.worker()
        answer(self.store.close_worker("w"))
        assert_refused(Fenced, self.store.heartbeat, "w", 10)

    # Leases

    def test_a_worker_that_renews_in_time_is_never_reaped(self) -> None:
        """I9."""
        self.worker(ttl=10)
        self.register("a")
        for _ in range(20):
            self.advance(9)
            answer(self.store.heartbeat("w", 10))
            assert self.reap() == {}
        assert self.get("a").status is Status.PENDING

    def test_a_worker_that_dies_before_its_first_heartbeat_is_seen(self) -> None:
        self.worker(ttl=10)
        self.register("a")
        self.advance(11)
        assert self.reap() == {"a": Status.LOST}

    def test_to_open_a_worker_again_renews_its_lease(self) -> None:
        self.worker(ttl=10)
        self.register("a")
        self.advance(9)
        self.worker(ttl=10)
        self.advance(9)
        assert self.reap() == {}

    def test_a_lease_that_ran_out_is_good_again_if_it_is_renewed_before_anybody_reaped(self) -> None:
        self.worker(ttl=10)
        self.register("a")
        self.advance(11)
        answer(self.store.heartbeat("w", 10))
        assert self.reap() == {}

    def test_the_id_of_a_worker_that_is_gone_is_never_used_again(self) -> None:
        """Otherwise its old runs and late writes would count again."""
        self.start("a")
        answer(self.store.close_worker("w"))
        assert_refused(Fenced, self.store.open_worker, WorkerInfo(id="w"), 10)
        self.worker("silent", ttl=10)
        self.advance(11)
        self.reap()
        assert_refused(Fenced, self.store.open_worker, WorkerInfo(id="silent"), 10)

    # Reaping

    def test_an_expired_lease_proves_nothing_and_leaves_lost(self) -> None:
        self.start("free")
        self.start("stopping")
        self.start("pending", running=False)
        self.stop("stopping", message="enough")
        self.advance(1000)
        assert self.reap() == dict.fromkeys(("free", "stopping", "pending"), Status.LOST)
        lost = self.get("stopping")
        assert lost.outcome is not None
        assert (lost.outcome.status, lost.outcome.rung, lost.outcome.clean) == (Status.LOST, Rung.LOST, None)
        assert lost.outcome.reason == intent().reason
        assert lost.receipt is not None
        assert (lost.receipt.status, lost.receipt.final) == (Status.LOST, True)
        assert lost.ended_at == self.store.now()

    def test_the_runs_of_a_closed_worker_end_at_once_stopped_if_a_stop_was_pending_else_failed(self) -> None:
        self.start("free")
        self.start("stopping")
        self.start("pending", running=False)
        self.start("told", running=False)
        self.stop("stopping")
        self.stop("told")
        answer(self.store.close_worker("w"))
        assert self.reap(expired=False) == {
            "free": Status.FAILED,
            "stopping": Status.STOPPED,
            "pending": Status.FAILED,
            "told": Status.STOPPED,
        }
        stopped, failed = self.get("stopping").outcome, self.get("free").outcome
        assert stopped is not None
        assert failed is not None
        assert (stopped.rung, stopped.clean, stopped.reason) == (Rung.KILL, None, intent().reason)
        assert failed.error is not None
        assert "w" in failed.error.message

    def test_a_worker_that_was_closed_after_its_lease_ran_out_is_proven_dead(self) -> None:
        self.start("a")
        self.advance(1000)
        answer(self.store.close_worker("w"))
        assert self.reap() == {"a": Status.FAILED}

    def test_without_expired_only_the_proven_dead_are_reaped(self) -> None:
        self.start("a", worker="silent")
        self.start("b", worker="closed")
        self.advance(1000)
        answer(self.store.close_worker("closed"))
        assert self.reap(expired=False) == {"b": Status.FAILED}
        assert self.get("a").status is Status.RUNNING
        assert self.intents("silent") == {}  # its lease is good again

    def test_only_the_runs_of_workers_that_are_gone_are_reaped(self) -> None:
        """I6."""
        self.worker("gone", ttl=10)
        self.worker("alive", ttl=100)
        self.register("a", worker="gone")
        self.register("child", worker="alive", parent_id="a")
        self.register("other", worker="alive")
        over = self.register("over", worker="gone").record
        before = self.finish(over)
        self.advance(50)
        assert self.reap() == {"a": Status.LOST}
        assert self.get("over") == before
        assert {self.get(run_id).status for run_id in ("child", "other")} == {Status.PENDING}

    def test_nothing_is_reaped_twice(self) -> None:
        self.start("a")
        self.advance(1000)
        assert self.reap() == {"a": Status.LOST}
        before = self.get("a")
        assert self.reap() == {}
        assert self.get("a") == before

    def test_so_many_are_reaped_at_a_time(self) -> None:
        for number in range(5):
            self.start(f"run {number}")
        self.advance(1000)
        counts = [len(self.reap(limit=2)) for _ in range(4)]
        assert counts == [2, 2, 1, 0]

    def test_what_a_limited_reaping_left_is_lost_only_if_that_is_asked_for(self) -> None:
        self.start("a")
        self.start("b")
        self.advance(1000)
        assert len(self.reap(limit=1)) == 1
        assert self.reap(expired=False) == {}
        assert_refused(Fenced, self.store.heartbeat, "w", 10)
        assert len(self.reap()) == 1

    def test_a_reaped_worker_is_fenced_and_so_is_all_that_it_writes(self) -> None:
        """I4, G15."""
        record = self.start("a")
        self.advance(1000)
        self.reap()
        lost = self.get("a")
        assert lost.epoch > record.epoch
        assert_refused(Fenced, self.store.heartbeat, "w", 10)
        assert_refused(Fenced, self.store.append, "a", record.epoch, [progress()])
        assert_refused(Fenced, self.store.acknowledge, "a", record.epoch, Mode.KILL, receipt(record))
        late = answer(self.store.finish("a", record.epoch, OutcomeRecord(status=Status.COMPLETED), None))
        assert (late.status, late.outcome) == (Status.LOST, lost.outcome)
        answer(self.store.close_worker("w"))
        assert self.get("a").status is Status.LOST

    def test_a_run_that_is_lost_and_ends_after_all_says_when(self) -> None:
        record = self.start("a")
        self.advance(1000)
        self.reap()
        assert self.get("a").ended_late is None
        self.advance(5)
        late = answer(self.store.finish("a", record.epoch, OutcomeRecord(status=Status.STOPPED), None))
        assert (late.status, late.ended_late) == (Status.LOST, self.store.now())
        self.advance(5)
        answer(self.store.finish("a", record.epoch, OutcomeRecord(status=Status.STOPPED), None))
        assert self.get("a").ended_late == late.ended_late, "the first report tells"
        assert answer(self.store.query(Filter())).runs[0].ended_late == late.ended_late

    def test_only_a_run_that_is_lost_can_end_late(self) -> None:
        record = self.start("a")
        self.finish(record)
        answer(self.store.finish("a", record.epoch, OutcomeRecord(status=Status.STOPPED), None))
        assert self.get("a").ended_late is None

    def test_the_partial_of_a_run_whose_worker_is_gone_is_what_its_log_has(self) -> None:
        """G11."""
        logs: dict[str, tuple[list[dict[str, Any]], Any]] = {
            "none": ([], None),
            "set": ([{"value": 1}, {"value": {"a": 2}}], {"a": 2}),
            "text": ([{"delta": "old"}, {"value": "a"}, {"delta": "b"}, {"delta": "c"}], "abc"),
            "appended": ([{"delta": "a"}, {"delta": "b"}], "ab"),
            "items": ([{"value": [1]}, {"delta": 2}, {"delta": "c"}], [1, 2, "c"]),
        }
        for run_id, (data, _) in logs.items():
            record = self.start(run_id)
            if data:
                self.append(record, *(Draft(type=EventType.PARTIAL, data=one) for one in data))
        cut = self.start("cut")
        self.append(cut, *(Draft(type=EventType.PARTIAL, data=one) for one in ({"delta": "a"}, OMITTED)))
        self.advance(1000)
        statuses = self.reap()
        assert set(statuses) == {*logs, "cut"}
        for run_id, (_, partial) in logs.items():
            outcome = self.get(run_id).outcome
            assert outcome is not None
            assert (outcome.partial, outcome.omitted) == (partial, {}), run_id
        outcome = self.get("cut").outcome
        assert outcome is not None
        assert outcome.partial == "a"
        assert "too large" in outcome.omitted["partial"]

    def test_a_reaped_run_says_so_in_its_log(self) -> None:
        self.start("a")
        self.advance(1000)
        self.reap()
        log = self.log("a")
        assert types_of(log) == ["status", "status", "done"]
        assert [event.data["status"] for event in log] == ["running", "lost", "lost"]
        assert is_dense(log)

    def test_to_close_a_worker_that_nobody_knows_does_nothing(self) -> None:
        answer(self.store.close_worker("nobody"))
        self.worker()
        answer(self.store.close_worker("w"))
        answer(self.store.close_worker("w"))
        assert self.reap() == {}

    # Hints

    def test_a_stop_wakes_the_worker_of_every_run_that_it_marks(self) -> None:
        self.start("a", worker="one")
        self.start("child", worker="other", parent_id="a")
        one, other = threading.Event(), threading.Event()
        subscriptions = [
            self.store.hints("one", lambda _: one.set()),
            self.store.hints("other", lambda _: other.set()),
        ]
        self.stop("a")
        assert one.wait(ANSWERS_WITHIN)
        assert other.wait(ANSWERS_WITHIN)
        one.clear()
        self.stop("a", Mode.KILL)
        assert one.wait(ANSWERS_WITHIN)
        for subscription in subscriptions:
            subscription.close()

    def test_a_worker_that_is_woken_finds_the_stop(self) -> None:
        self.start("a")
        run_ids: list[str] = []
        wakeup = threading.Event()

        def look(_: Sequence[Intent] | None) -> None:
            self.store.heartbeat("w", 10).then(note)

        def note(future: StoreFuture[Sequence[Intent]]) -> None:
            run_ids.extend(each.run_id for each in future.result())
            wakeup.set()

        subscription = self.store.hints("w", look)
        self.stop("a")
        assert wakeup.wait(ANSWERS_WITHIN)
        assert run_ids[:1] == ["a"]
        subscription.close()

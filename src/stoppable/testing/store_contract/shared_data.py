"""Tests of a store that outlives its process, or that several processes share."""

from __future__ import annotations

import threading
from abc import abstractmethod
from unittest import SkipTest

from stoppable._core.stop import Answer
from stoppable._core.values import Mode, Status
from stoppable.errors import Fenced, RunConflict, RunHeld
from stoppable.records import Filter, OutcomeRecord, RunRecord, Selector, StopRequest
from stoppable.stores.base import Store, WorkerInfo
from stoppable.testing.store_contract.concurrency import THREADS, at_once
from stoppable.testing.store_contract.harness import (
    ANSWERS_WITHIN,
    TTL,
    StoreClock,
    StoreHarness,
    answer,
    assert_refused,
    intent,
    is_dense,
    list_of,
    progress,
    types_of,
)


class DurabilityContract(StoreHarness):
    """Two stores over the same data."""

    @abstractmethod
    def another_store(self, clock: StoreClock) -> Store:
        """Return another store over the data of the first, as another process would make it; not yet open."""

    def die(self, worker: str, *run_ids: str) -> None:  # noqa: ARG002 - for those that override it
        """Start a process that opens a worker with a long lease and registers runs of it; then kill the process.

        For a store that can prove a death; one that cannot leaves this as it is.
        """
        raise SkipTest("this store proves no death: a worker without a lease is lost")

    def reopen(self) -> Store:
        """Close the store and open another one over its data."""
        self.store.close()
        self._stores.clear()
        return self.open_store(self.another_store(self.clock))

    def test_what_was_answered_is_there_after_the_store_was_closed(self) -> None:
        """G14."""
        self.start("a", owner="ann", labels={"team": "x"})
        self.start("child", parent_id="a", running=False)
        over = self.finish(self.start("over"), result=[1])
        self.stop("a", Mode.IMMEDIATE, "enough", idempotency_key="k")
        records = [self.get(run_id) for run_id in ("a", "child")]
        before = answer(self.store.tree("a")), self.log("a"), list_of(self.store.audit())
        self.reopen()
        assert (answer(self.store.tree("a")), self.log("a"), list_of(self.store.audit())) == before
        assert [self.get(run_id) for run_id in ("a", "child")] == records
        assert self.get("over") == over
        assert [record.id for record in answer(self.store.query(Filter())).runs] == ["over", "child", "a"]
        assert set(self.intents()) == {"a", "child"}

    def test_promises_hold_after_the_store_was_closed(self) -> None:
        """Requests, keys, holds, stops that arrived before their runs, and fenced workers."""
        record = self.start("a")
        self.stop("a", idempotency_key="k")
        hold = answer(self.store.place_hold(Selector(owner="ann"), intent()))
        self.stop("first", Mode.KILL, if_unknown="wait")
        self.worker("gone")
        answer(self.store.close_worker("gone"))
        self.reopen()
        assert not self.register("a").created
        assert_refused(RunConflict, self.store.register, RunRecord(id="a", name="agent", worker="w"), "another")
        assert [each.answer for each in self.stop("a", Mode.KILL, idempotency_key="k").answers] == [Answer.ACCEPTED]
        assert list_of(self.store.holds()) == [hold]
        assert_refused(RunHeld, self.store.register, RunRecord(id="b", name="agent", owner="ann", worker="w"), "r")
        assert self.register("first").record.status is Status.STOPPED
        assert_refused(Fenced, self.store.heartbeat, "gone", 10)
        assert self.append(record, progress()) == self.get("a").last_event

    def test_what_was_asked_for_is_finished_before_the_store_closes(self) -> None:
        record = self.start("a", running=False)
        for step in range(50):
            self.store.append("a", record.epoch, [progress(step=step)])
        self.store.request_stop(StopRequest(target="a", intent=intent()))
        self.reopen()
        assert [event.data["step"] for event in self.log("a")] == list(range(50))
        assert self.get("a").stop == intent()

    def test_a_worker_whose_process_died_is_proven_dead_while_its_lease_lasts(self) -> None:
        """G8: only then are its runs failed, or stopped if a stop was pending."""
        self.start("alive")
        self.die("gone", "a", "b")
        self.stop("b")
        assert self.reap(expired=False) == {"a": Status.FAILED, "b": Status.STOPPED}
        assert self.get("alive").status is Status.RUNNING
        assert_refused(Fenced, self.store.heartbeat, "gone", 30.0)
        assert self.reap(expired=False) == {}

    def test_leases_go_on_while_the_store_is_closed(self) -> None:
        self.worker(ttl=10)
        self.register("a")
        self.reopen()
        self.advance(9)
        assert self.reap() == {}
        self.advance(2)
        assert self.reap() == {"a": Status.LOST}

    def test_a_change_made_in_another_process_wakes_those_who_watch(self) -> None:
        record = self.start("a")
        other = self.open_store(self.another_store(self.clock))
        wakeup = threading.Event()
        subscription = self.store.watch("a", wakeup.set)
        answer(other.append("a", record.epoch, [progress()]))
        assert wakeup.wait(ANSWERS_WITHIN)
        wakeup.clear()
        answer(other.finish("a", record.epoch, OutcomeRecord(status=Status.COMPLETED), None))
        assert wakeup.wait(ANSWERS_WITHIN)
        assert self.get("a").status is Status.COMPLETED
        subscription.close()

    def test_a_stop_made_in_another_process_wakes_the_worker(self) -> None:
        self.start("a")
        other = self.open_store(self.another_store(self.clock))
        wakeup = threading.Event()
        subscription = self.store.hints("w", lambda _: wakeup.set())
        answer(other.request_stop(StopRequest(target="a", intent=intent())))
        assert wakeup.wait(ANSWERS_WITHIN)
        assert self.intents() == {"a": intent()}
        subscription.close()

    def test_of_many_ends_in_two_processes_one_wins(self) -> None:
        """I1, G2."""
        stores = [self.store, self.open_store(self.another_store(self.clock))]
        for round_ in range(10):
            record = self.start(f"run {round_}")

            def end(thread: int, record: RunRecord = record) -> object:
                outcome = OutcomeRecord(status=Status.COMPLETED, result=thread)
                stored_outcome = answer(stores[thread % 2].finish(record.id, record.epoch, outcome, None)).outcome
                return stored_outcome and stored_outcome.result

            assert len(set(at_once(end))) == 1
            assert types_of(self.log(record.id)).count("late") == THREADS - 1

    def test_events_added_in_two_processes_have_dense_numbers(self) -> None:
        """I7."""
        stores = [self.store, self.open_store(self.another_store(self.clock))]
        record = self.start("a", running=False)

        def add(thread: int) -> list[int]:
            store = stores[thread % 2]
            return [answer(store.append("a", record.epoch, [progress(thread=thread)])) for _ in range(20)]

        numbers = [number for each in at_once(add) for number in each]
        assert sorted(numbers) == list(range(1, 20 * THREADS + 1))
        assert is_dense(self.log("a"))


ROUNDS = 15


class SharedDataContract(DurabilityContract):
    """Threads of even numbers use one store, the others another."""

    def stores(self) -> list[Store]:
        """Return a store for each thread, with one worker on them."""
        self.worker()
        both = [self.store, self.open_store(self.another_store(self.clock))]
        return [both[thread % 2] for thread in range(THREADS)]

    def test_a_stop_and_the_start_of_its_run_in_two_processes_do_not_miss_each_other(self) -> None:
        """G14: the run is stopped, or begins stopped."""
        stores = self.stores()
        for round_ in range(ROUNDS):

            def race(thread: int, round_: int = round_) -> None:
                run_id = f"{round_}: {thread // 2}"
                if (thread + round_) % 2:
                    answer(stores[thread].request_stop(StopRequest(target=run_id, intent=intent(), if_unknown="wait")))
                else:
                    answer(stores[thread].register(_run(run_id), "r"))

            at_once(race)
            unstopped = [pair for pair in range(THREADS // 2) if self.get(f"{round_}: {pair}").stop is None]
            assert unstopped == [], f"round {round_}: not stopped"

    def test_a_stop_of_a_key_and_a_start_in_two_processes_do_not_miss_each_other(self) -> None:
        """G14, in the first run of a key and in every other."""
        stores = self.stores()
        for round_ in range(ROUNDS):

            def race(thread: int, round_: int = round_) -> None:
                key = f"key {thread // 2}"
                if (thread + round_) % 2:
                    answer(
                        stores[thread].request_stop(
                            StopRequest(target=Selector(key=key), intent=intent(), if_unknown="wait")
                        )
                    )
                else:
                    answer(stores[thread].register(_run(f"{round_}: {key}", key=key), "r"))

            at_once(race)
            for pair in range(THREADS // 2):
                record = self.get(f"{round_}: key {pair}")
                assert record.stop is not None, f"round {round_}: not stopped"
                self.finish(record, Status.STOPPED)

    def test_a_hold_and_starts_in_two_processes_do_not_miss_each_other(self) -> None:
        """A start is refused, or its run is stopped."""
        stores = self.stores()
        for round_ in range(ROUNDS):
            owner = f"owner {round_}"

            def race(thread: int, owner: str = owner) -> str | None:
                if thread == 0:
                    answer(
                        stores[0].request_stop(StopRequest(target=Selector(owner=owner), intent=intent(), hold=True))
                    )
                    return None
                try:
                    return answer(stores[thread].register(_run(f"{owner}: {thread}", owner=owner), "r")).record.id
                except RunHeld:
                    return None

            started_ids = [run_id for run_id in at_once(race) if run_id is not None]
            assert [run_id for run_id in started_ids if self.get(run_id).stop is None] == []

    def test_a_tree_and_children_that_are_born_in_another_process_stop_together(self) -> None:
        """I5."""
        stores = self.stores()
        for round_ in range(ROUNDS):
            root = self.start(f"root {round_}").id

            def race(thread: int, root: str = root) -> None:
                if thread == 0:
                    answer(stores[0].request_stop(StopRequest(target=root, intent=intent())))
                else:
                    answer(stores[thread].register(_run(f"{root}: {thread}", parent_id=root), "r"))

            at_once(race)
            tree = answer(self.store.tree(root))
            assert len(tree) == THREADS
            assert [run.id for run in tree if run.mode is None] == []

    def test_a_run_that_starts_while_its_worker_is_given_up_does_not_stay_behind(self) -> None:
        """It is refused, or given up with the others."""
        stores = self.stores()
        for round_ in range(ROUNDS):
            worker = f"worker {round_}"
            answer(self.store.open_worker(WorkerInfo(id=worker), 10.0))
            self.advance(11)

            def race(thread: int, worker: str = worker) -> str | None:
                if thread < THREADS // 2:
                    answer(stores[thread].reap())
                    return None
                try:
                    return answer(stores[thread].register(_run(f"{worker}: {thread}", worker=worker), "r")).record.id
                except Fenced:
                    return None

            started_ids = [run_id for run_id in at_once(race) if run_id is not None]
            self.reap()
            assert [run_id for run_id in started_ids if not self.get(run_id).over] == []
            self.worker(ttl=TTL * ROUNDS)

    def test_of_many_starts_with_one_id_in_two_processes_one_creates_the_run(self) -> None:
        stores = self.stores()
        for round_ in range(ROUNDS):
            run = _run(f"run {round_}")
            creations = at_once(lambda thread, run=run: answer(stores[thread].register(run, "r")).created)  # type: ignore[misc]
            assert creations.count(True) == 1

    def test_of_stops_in_two_processes_the_hardest_mode_stays_and_none_is_told_twice(self) -> None:
        """I8."""
        stores, modes = self.stores(), list(Mode)
        for round_ in range(ROUNDS):
            run_id = self.start(f"run {round_}").id

            def race(thread: int, run_id: str = run_id, round_: int = round_) -> None:
                answer(
                    stores[thread].request_stop(
                        StopRequest(target=run_id, intent=intent(modes[(thread + round_) % len(modes)]))
                    )
                )

            at_once(race)
            stop = self.get(run_id).stop
            assert stop is not None
            assert stop.mode is Mode.KILL
            modes_told = [Mode(event.data["mode"]) for event in self.log(run_id) if event.data["status"] == "stopping"]
            assert modes_told == sorted(set(modes_told), key=lambda mode: mode.rank)

    # Readers that read on

    def test_a_reader_of_the_audit_that_reads_on_misses_no_entry_of_another_process(self) -> None:
        stores = self.stores()
        seen: list[str] = []
        written = threading.Event()

        def race(thread: int) -> None:
            if thread > 0:
                for step in range(ROUNDS):
                    answer(stores[thread].place_hold(Selector(owner=f"{thread} {step}"), intent()))
                return
            after, is_last = 0, False
            while not is_last:
                is_last = written.is_set()
                for entry in answer(stores[0].audit(after)):
                    after = entry.id
                    seen.append(entry.target["selector"]["owner"])

        reader = threading.Thread(target=race, args=(0,))
        reader.start()
        try:
            at_once(lambda thread: race(thread + 1) if thread < THREADS - 1 else None)
        finally:
            written.set()
            reader.join()
        assert sorted(seen) == sorted(f"{thread} {step}" for thread in range(1, THREADS) for step in range(ROUNDS))

    def test_a_reader_of_all_events_that_reads_on_misses_none_of_another_process(self) -> None:
        """I7."""
        stores = self.stores()
        records = [self.start(f"run {thread}") for thread in range(THREADS)]
        seen: list[tuple[str, int]] = []
        written = threading.Event()

        def read() -> None:
            place, is_last = 0, False
            while not is_last:
                is_last = written.is_set()
                tail = answer(stores[0].tail(place))
                place = tail.place
                seen.extend((event.run_id, event.seq) for _, event in tail.events)

        def add(thread: int) -> None:
            for step in range(ROUNDS):
                answer(stores[thread].append(records[thread].id, records[thread].epoch, [progress(step=step)]))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            at_once(add)
        finally:
            written.set()
            reader.join()
        for record in records:
            log = self.log(record.id)
            assert is_dense(log)
            assert [seq for run_id, seq in seen if run_id == record.id] == [event.seq for event in log]


def _run(run_id: str, *, worker: str = "w", **fields: str) -> RunRecord:
    return RunRecord(id=run_id, name="agent", worker=worker, **fields)  # type: ignore[arg-type]

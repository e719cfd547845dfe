"""Races over two stores of one database, where no lock of one process covers both sides."""

from __future__ import annotations

import threading

from stoppable._core.state import Mode, Status
from stoppable.errors import Fenced, RunHeld
from stoppable.records import RunRecord, Selector
from stoppable.stores.base import Store, WorkerInfo
from stoppable.testing.store_contract.durable import Durable
from stoppable.testing.store_contract.harness import TTL, answer, intent, is_dense, progress
from stoppable.testing.store_contract.together import THREADS, at_once

ROUNDS = 15


class Shared(Durable):
    """Threads of even numbers use one store, the others another."""

    def stores(self) -> list[Store]:
        """Return a store for each thread, with one worker on them."""
        self.worker()
        both = [self.store, self.opened(self.another_store(self.clock))]
        return [both[thread % 2] for thread in range(THREADS)]

    def test_a_stop_and_the_start_of_its_run_in_two_processes_do_not_miss_each_other(self) -> None:
        """G14: the run is stopped, or begins stopped."""
        stores = self.stores()
        for round_ in range(ROUNDS):

            def race(thread: int, round_: int = round_) -> None:
                run_id = f"{round_}: {thread // 2}"
                if (thread + round_) % 2:
                    answer(stores[thread].request_stop(run_id, intent(), if_unknown_hold=True))
                else:
                    answer(stores[thread].register(_run(run_id), "r"))

            at_once(race)
            left = [pair for pair in range(THREADS // 2) if self.get(f"{round_}: {pair}").stop is None]
            assert left == [], f"round {round_}: not stopped"

    def test_a_stop_of_a_key_and_a_start_in_two_processes_do_not_miss_each_other(self) -> None:
        """G14, in the first run of a key and in every other."""
        stores = self.stores()
        for round_ in range(ROUNDS):

            def race(thread: int, round_: int = round_) -> None:
                key = f"key {thread // 2}"
                if (thread + round_) % 2:
                    answer(stores[thread].request_stop(Selector(key=key), intent(), if_unknown_hold=True))
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
                    answer(stores[0].request_stop(Selector(owner=owner), intent(), hold=True))
                    return None
                try:
                    return answer(stores[thread].register(_run(f"{owner}: {thread}", owner=owner), "r")).record.id
                except RunHeld:
                    return None

            begun = [run_id for run_id in at_once(race) if run_id is not None]
            assert [run_id for run_id in begun if self.get(run_id).stop is None] == []

    def test_a_tree_and_children_that_are_born_in_another_process_stop_together(self) -> None:
        """I5."""
        stores = self.stores()
        for round_ in range(ROUNDS):
            root = self.start(f"root {round_}").id

            def race(thread: int, root: str = root) -> None:
                if thread == 0:
                    answer(stores[0].request_stop(root, intent()))
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

            begun = [run_id for run_id in at_once(race) if run_id is not None]
            self.reap()
            assert [run_id for run_id in begun if not self.get(run_id).over] == []
            self.worker(ttl=TTL * ROUNDS)

    def test_of_many_starts_with_one_id_in_two_processes_one_creates_the_run(self) -> None:
        stores = self.stores()
        for round_ in range(ROUNDS):
            run = _run(f"run {round_}")
            made = at_once(lambda thread, run=run: answer(stores[thread].register(run, "r")).created)  # type: ignore[misc]
            assert made.count(True) == 1

    def test_of_stops_in_two_processes_the_hardest_mode_stays_and_none_is_told_twice(self) -> None:
        """I8."""
        stores, modes = self.stores(), list(Mode)
        for round_ in range(ROUNDS):
            run_id = self.start(f"run {round_}").id

            def race(thread: int, run_id: str = run_id, round_: int = round_) -> None:
                answer(stores[thread].request_stop(run_id, intent(modes[(thread + round_) % len(modes)])))

            at_once(race)
            stop = self.get(run_id).stop
            assert stop is not None
            assert stop.mode is Mode.KILL
            told = [Mode(event.data["mode"]) for event in self.log(run_id) if event.data["status"] == "stopping"]
            assert told == sorted(set(told), key=lambda mode: mode.rank)

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
                found = answer(stores[0].tail(place))
                place = found.place
                seen.extend((event.run_id, event.seq) for _, event in found.events)

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

"""Tests of concurrent calls: threads, event loops, and stops that race with starts and ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stoppable._core.values import Mode, Status
from stoppable.errors import RunHeld, RunNotFound
from stoppable.records import Filter, OutcomeRecord, RunRecord, Selector, StopRequest
from stoppable.testing.store_contract.harness import (
    ANSWERS_WITHIN,
    StoreHarness,
    answer,
    intent,
    is_dense,
    list_of,
    progress,
    types_of,
)

T = TypeVar("T")
THREADS = 6


class ConcurrencyContract(StoreHarness):
    """Threads and event loops share a store."""

    # Waiting

    def test_an_answer_is_awaited_in_an_event_loop(self) -> None:
        self.start("a")

        async def look() -> RunRecord:
            async with asyncio.timeout(ANSWERS_WITHIN):
                await self.store.request_stop(StopRequest(target="a", intent=intent()))
                return await self.store.get("a")

        assert asyncio.run(look()).stop == intent()

    def test_an_error_comes_out_where_the_answer_is_awaited(self) -> None:
        async def look() -> bool:
            try:
                async with asyncio.timeout(ANSWERS_WITHIN):
                    await self.store.get("a")
            except RunNotFound:
                return True
            return False

        assert asyncio.run(look())

    def test_one_answer_is_awaited_by_many_and_on_threads(self) -> None:
        self.start("a")
        reply = self.store.get("a")

        async def many() -> list[str]:
            async with asyncio.timeout(ANSWERS_WITHIN):
                return [record.id for record in await asyncio.gather(*(wait() for _ in range(3)))]

        async def wait() -> RunRecord:
            return await reply

        assert at_once(lambda _: asyncio.run(many())) == [["a"] * 3] * THREADS
        assert at_once(lambda _: answer(reply).id) == ["a"] * THREADS

    def test_whoever_stops_waiting_loses_nothing(self) -> None:
        """The call is made nevertheless."""
        record = self.start("a")

        async def give_up() -> None:
            async def append() -> None:
                await self.store.append("a", record.epoch, [progress()])

            task = asyncio.create_task(append())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(give_up())
        assert self.append(record, progress()) == 3

    def test_calls_happen_in_the_order_in_which_they_were_made(self) -> None:
        record = self.start("a", running=False)
        replies = [self.store.append("a", record.epoch, [progress(step=step)]) for step in range(100)]
        end = self.store.finish("a", record.epoch, OutcomeRecord(status=Status.COMPLETED), None)
        assert [answer(reply) for reply in replies] == list(range(1, 101))
        assert answer(end).status is Status.COMPLETED
        assert [event.data["step"] for event in self.log("a")[:100]] == list(range(100))

    # Races

    def test_threads_that_add_events_get_dense_numbers_each_once(self) -> None:
        """I7."""
        record = self.start("a", running=False)

        def add(thread: int) -> list[int]:
            return [self.append(record, progress(thread=thread, step=step)) for step in range(30)]

        numbers = at_once(add)
        assert sorted(number for each in numbers for number in each) == list(range(1, 30 * THREADS + 1))
        log = self.log("a")
        assert is_dense(log)
        for thread in range(THREADS):
            assert [event.data["step"] for event in log if event.data["thread"] == thread] == list(range(30))

    def test_of_many_ends_at_once_one_wins(self) -> None:
        """I1, G2."""
        for round_ in range(10):
            record = self.start(f"run {round_}")

            def end(thread: int, record: RunRecord = record) -> RunRecord:
                return self.finish(record, Status.COMPLETED if thread % 2 else Status.FAILED, result=thread)

            results = {repr(each.outcome and each.outcome.result) for each in at_once(end)}
            assert len(results) == 1, results
            log = types_of(self.log(record.id))
            assert (log.count("done"), log.count("late")) == (1, THREADS - 1)

    def test_of_ends_and_reapers_at_once_one_wins(self) -> None:
        for round_ in range(10):
            record = self.start(f"run {round_}", worker=f"w {round_}")
            answer(self.store.close_worker(record.worker))

            def end(thread: int, record: RunRecord = record) -> Status | None:
                return self.finish(record).status if thread % 2 else self.reap().get(record.id)

            statuses = {status for status in at_once(end) if status is not None}
            assert statuses == {self.get(record.id).status}
            assert types_of(self.log(record.id)).count("done") == 1

    def test_of_many_starts_with_one_id_one_creates_the_run(self) -> None:
        self.worker()
        starts = at_once(lambda _: self.register("a"))
        assert [each.created for each in starts].count(True) == 1
        assert len({each.record.created_at for each in starts}) == 1

    def test_of_many_stops_at_once_the_hardest_mode_stays(self) -> None:
        """I8."""
        modes = list(Mode)
        for round_ in range(10):
            run_id = self.start(f"run {round_}").id

            def stop_it(thread: int, run_id: str = run_id, first: int = round_) -> None:
                self.stop(run_id, modes[(thread + first) % len(modes)], f"by {thread}")

            at_once(stop_it)
            stop = self.get(run_id).stop
            assert stop is not None
            assert stop.mode is Mode.KILL
            modes_told = [Mode(event.data["mode"]) for event in self.log(run_id) if event.data["status"] == "stopping"]
            assert modes_told == sorted(set(modes_told), key=lambda mode: mode.rank)
            assert modes_told[-1] is Mode.KILL

    def test_of_many_stops_with_one_key_one_is_made(self) -> None:
        """I8."""
        self.start("a", owner="ann")
        owned = Selector(owner="ann")
        results = at_once(lambda thread: self.stop(owned, message=f"by {thread}", hold=True, idempotency_key="k"))
        assert len({repr((result.answers, result.hold)) for result in results}) == 1
        assert (len(list_of(self.store.holds())), len(list_of(self.store.audit()))) == (1, 1)

    def test_a_child_that_is_born_while_its_tree_is_stopped_does_not_slip_through(self) -> None:
        """I5: the child is stopped, or begins stopped."""
        for round_ in range(10):
            root = self.start(f"root {round_}").id

            def race(thread: int, root: str = root) -> None:
                if thread == 0:
                    self.stop(root)
                else:
                    for step in range(5):
                        self.register(f"{root}: {thread} {step}", parent_id=root)

            at_once(race)
            assert [run.id for run in answer(self.store.tree(root)) if run.mode is None] == []

    def test_a_run_that_starts_while_all_are_stopped_and_held_does_not_slip_through(self) -> None:
        """The hold is placed before the runs are listed: a start is refused, or it is stopped."""
        self.worker()
        for round_ in range(10):
            owner = f"owner {round_}"

            def race(thread: int, owner: str = owner) -> None:
                if thread == 0:
                    self.stop(Selector(owner=owner), hold=True)
                else:
                    for step in range(5):
                        try:
                            self.register(f"{owner}: {thread} {step}", owner=owner)
                        except RunHeld:
                            return

            at_once(race)
            runs = answer(self.store.query(Filter(owner=owner), None, 1000)).runs
            assert [record.id for record in runs if record.mode is None] == []

    def test_a_run_that_starts_while_its_key_is_stopped_does_not_slip_through(self) -> None:
        """The run is stopped, or begins stopped, in the first round of a key and in every other."""
        self.worker()
        for round_ in range(20):

            def race(thread: int, round_: int = round_) -> None:
                key = f"key {thread // 2}"
                if (thread + round_) % 2:
                    self.stop(Selector(key=key), if_unknown="wait")
                else:
                    self.register(f"{key}: {round_}", key=key)

            at_once(race)
            for pair in range(THREADS // 2):
                record = self.get(f"key {pair}: {round_}")
                assert record.stop is not None, record.id
                self.finish(record, Status.STOPPED)


def at_once(call: Callable[[int], T]) -> list[T]:
    """Make a call on many threads that start together, and return their results."""
    barrier = threading.Barrier(THREADS, timeout=ANSWERS_WITHIN)

    def begin(thread: int) -> T:
        barrier.wait()
        return call(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS), timeout=2 * ANSWERS_WITHIN))

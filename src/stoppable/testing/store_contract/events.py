"""Tests of the logs of runs: each in order and without a gap, all of them as one, and what is in flight."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from stoppable._core.values import Mode, Status
from stoppable.errors import Fenced, InvalidArgument, RunNotFound
from stoppable.records import Draft, Event, EventType, OutcomeRecord
from stoppable.stores.base import ANY, StoreFuture
from stoppable.stores.rules import FACTS_KEPT
from stoppable.testing.store_contract.harness import (
    ANSWERS_WITHIN,
    StoreHarness,
    answer,
    assert_refused,
    is_dense,
    list_of,
    progress,
    status,
    types_of,
)


class LogContract(StoreHarness):
    """``append``, ``read`` and ``watch``."""

    def test_events_get_dense_numbers_from_one_and_the_last_comes_back(self) -> None:
        record = self.start("a", running=False)
        assert self.append(record, progress(step=1), progress(step=2)) == 2
        assert self.append(record, progress(step=3)) == 3
        log = self.log("a")
        assert is_dense(log)
        assert [event.data["step"] for event in log] == [1, 2, 3]
        assert {event.run_id for event in log} == {"a"}
        assert self.get("a").last_event == 3

    def test_to_add_nothing_returns_the_last_number(self) -> None:
        record = self.start("a")
        assert self.append(record) == 1
        assert len(self.log("a")) == 1

    def test_logs_of_two_runs_are_numbered_apart(self) -> None:
        one, other = self.start("a"), self.start("b")
        self.append(one, progress(), progress())
        assert self.append(other, progress()) == 2

    def test_an_event_has_the_time_of_the_store_or_its_own(self) -> None:
        record = self.start("a", running=False)
        self.advance(5)
        self.append(record, progress(), Draft(type=EventType.LOG, at=3.5))
        assert [event.at for event in self.log("a")] == [self.store.now(), 3.5]

    def test_an_event_keeps_its_type_and_data(self) -> None:
        record = self.start("a", running=False)
        data = {"text": "ü \U0001f6d1 \x00", "list": [1, 2.5, None, True], "deep": {"er": {}}}
        kinds = [EventType.PROGRESS, EventType.PARTIAL, EventType.ENTERED, EventType.LEFT, EventType.LOG]
        self.append(record, *(Draft(type=kind, data=data) for kind in kinds))
        assert [(event.type, event.data) for event in self.log("a")] == [(kind, data) for kind in kinds]

    # Facts about the run

    def test_facts_join_the_metadata_of_the_record(self) -> None:
        record = self.start("a")
        assert record.metadata == {}
        self.append(record, facts(task="t-1", url="a"), progress(), facts(url="b", deep={"er": [1]}))
        assert self.get("a").metadata == {"task": "t-1", "url": "b", "deep": {"er": [1]}}
        assert types_of(self.log("a")) == ["status", "annotated", "progress", "annotated"]
        self.append(record, progress())
        self.stop("a")
        ended = answer(
            self.store.finish("a", 1, OutcomeRecord(status=Status.STOPPED), None, [facts(task="t-2"), progress()])
        )
        assert ended.metadata == self.get("a").metadata == {"task": "t-2", "url": "b", "deep": {"er": [1]}}

    def test_facts_that_were_left_out_change_nothing_and_too_many_are_not_kept(self) -> None:
        record = self.start("a")
        self.append(record, Draft(type=EventType.ANNOTATED, data={"metadata": None, "omitted": "too long"}))
        assert self.get("a").metadata == {}
        for number in range(100):
            self.append(record, facts(**{f"fact {number}": number}))
        assert len(self.get("a").metadata) == FACTS_KEPT
        self.append(record, facts(**{"fact 0": "again"}))
        assert self.get("a").metadata["fact 0"] == "again"

    def test_facts_are_kept_also_if_the_log_is_full(self) -> None:
        record = self.start("a")
        self.append(record, *(progress() for _ in range(self.events_kept)))
        self.append(record, facts(task="t-1"))
        assert self.get("a").metadata == {"task": "t-1"}
        assert "annotated" not in types_of(self.log("a"))

    # Read

    def test_a_reader_who_resumes_sees_every_event_once(self) -> None:
        """I7."""
        record = self.start("a", running=False)
        self.append(record, *(progress(step=step) for step in range(25)))
        steps: list[int] = []
        while page := answer(self.store.read("a", len(steps), 7)):
            steps += [event.data["step"] for event in page]
        assert steps == list(range(25))

    def test_large_events_are_all_read_a_few_at_a_time(self) -> None:
        record = self.start("a", running=False)
        for _ in range(4):
            self.append(record, *(progress(text="x" * 100_000) for _ in range(3)))
        assert [event.seq for event in self.log("a")] == list(range(1, 13))
        assert len(answer(self.store.read("a", 11, 7))) == 1

    def test_there_is_nothing_after_the_last_event(self) -> None:
        record = self.start("a")
        last = self.append(record, progress())
        assert list_of(self.store.read("a", last)) == []
        assert list_of(self.store.read("a", last + 100)) == []

    def test_the_log_of_an_unknown_run_is_not_found(self) -> None:
        assert_refused(RunNotFound, self.store.read, "a")
        assert_refused(RunNotFound, self.store.append, "a", 1, [progress()])

    # The fence

    def test_an_old_epoch_adds_nothing(self) -> None:
        """I4."""
        record = self.start("a")
        over = self.finish(record)
        log = self.log("a")
        for epoch in (record.epoch, over.epoch, 0):
            assert_refused(Fenced, self.store.append, "a", epoch, [progress()])
        assert self.log("a") == log

    def test_an_epoch_that_is_not_the_runs_adds_nothing(self) -> None:
        record = self.start("a")
        assert_refused(Fenced, self.store.append, "a", record.epoch + 1, [progress()])
        assert len(self.log("a")) == 1

    # Statuses

    def test_a_status_event_moves_the_run_along_the_table(self) -> None:
        record = self.start("a", running=False)
        self.advance(2)
        self.append(record, status(Status.RUNNING))
        running = self.get("a")
        assert (running.status, running.started_at) == (Status.RUNNING, self.store.now())
        self.advance(2)
        self.append(record, status(Status.STOPPING))
        stopping = self.get("a")
        assert (stopping.status, stopping.started_at) == (Status.STOPPING, running.started_at)

    def test_a_status_event_never_moves_a_run_back_or_past_a_status(self) -> None:
        record = self.start("a", running=False)
        self.append(record, status(Status.STOPPING))
        assert self.get("a").status is Status.PENDING
        self.append(record, status(Status.RUNNING), status(Status.PENDING))
        assert self.get("a").status is Status.RUNNING
        self.append(record, status(Status.STOPPING), status(Status.RUNNING))
        assert self.get("a").status is Status.STOPPING

    def test_a_status_event_never_ends_a_run(self) -> None:
        """The end has its own call, which compares and sets."""
        record = self.start("a")
        for end in (Status.COMPLETED, Status.FAILED, Status.STOPPED, Status.LOST):
            self.append(record, status(end))
        stored_record = self.get("a")
        assert (stored_record.status, stored_record.epoch, stored_record.outcome) == (
            Status.RUNNING,
            record.epoch,
            None,
        )

    def test_a_status_that_is_none_is_refused_with_all_that_came_with_it(self) -> None:
        record = self.start("a")
        log = self.log("a")
        for bad in (status("bogus"), Draft(type=EventType.STATUS)):
            assert_refused(InvalidArgument, self.store.append, "a", record.epoch, [progress(), bad])
            assert_refused(InvalidArgument, self.store.append, "a", record.epoch, [status(Status.STOPPING), bad])
        assert (self.get("a"), self.log("a")) == (record, log)

    # A full log

    def test_a_full_log_is_truncated_once_and_keeps_the_statuses(self) -> None:
        record = self.start("a")
        for at in range(0, self.events_kept + 10, 1000):
            self.append(record, *(progress(step=at + step) for step in range(1000)))
        assert types_of(self.log("a")[-2:]) == ["progress", "truncated"]
        assert len(self.log("a")) == self.events_kept + 1
        self.append(record, progress(), status(Status.STOPPING), progress())
        over = self.finish(record, Status.STOPPED)
        log = self.log("a")
        assert types_of(log[self.events_kept :]) == ["truncated", "status", "status", "done"]
        assert (over.status, over.last_event) == (Status.STOPPED, len(log))
        assert is_dense(log)

    # Watch

    def test_whoever_watches_a_run_is_woken_by_its_events_its_stop_and_its_end(self) -> None:
        record = self.start("a")
        wakeup = threading.Event()
        subscription = self.store.watch("a", wakeup.set)
        changes = (
            lambda: self.append(record, progress()),
            lambda: self.stop("a"),
            lambda: self.acknowledge(record, Mode.GRACEFUL),
            lambda: self.finish(record, Status.STOPPED),
        )
        for change in changes:
            wakeup.clear()
            change()
            assert wakeup.wait(ANSWERS_WITHIN)
        subscription.close()

    def test_whoever_watches_a_run_is_woken_when_it_is_reaped(self) -> None:
        self.start("a")
        wakeup = threading.Event()
        subscription = self.store.watch("a", wakeup.set)
        self.advance(1000)
        self.reap()
        assert wakeup.wait(ANSWERS_WITHIN)
        subscription.close()

    def test_what_changed_can_be_read_when_the_watcher_is_woken(self) -> None:
        record = self.start("a")
        read: list[int] = []
        wakeup = threading.Event()

        def look() -> None:
            self.store.read("a", 1).then(note)

        def note(future: StoreFuture[Sequence[Event]]) -> None:
            read.append(len(future.result()))
            if read[-1] > 0:  # a store may also call a new watcher at once
                wakeup.set()

        subscription = self.store.watch("a", look)
        self.append(record, progress())
        assert wakeup.wait(ANSWERS_WITHIN)
        assert read[-1] == 1
        subscription.close()

    def test_a_closed_subscription_is_called_no_more(self) -> None:
        record = self.start("a")
        calls: list[int] = []
        wakeup = threading.Event()
        subscription = self.store.watch("a", lambda: calls.append(1))
        subscription.close()
        subscription.close()
        for step in range(10):
            wakeup.clear()
            witness = self.store.watch("a", wakeup.set)
            self.append(record, progress(step=step))
            assert wakeup.wait(ANSWERS_WITHIN)
            witness.close()
        assert len(calls) <= 1  # one may have been on its way

    def test_a_watcher_that_fails_harms_nobody(self) -> None:
        """For example because it wakes an event loop that is closed."""
        record = self.start("a")
        wakeup, hint = threading.Event(), threading.Event()

        def fail(*_: object) -> None:
            raise RuntimeError("Event loop is closed")

        subscriptions = [
            self.store.watch("a", fail),
            self.store.watch("a", wakeup.set),
            self.store.hints("w", fail),
            self.store.hints("w", lambda _: hint.set()),
        ]
        self.stop("a")
        assert wakeup.wait(ANSWERS_WITHIN)
        assert hint.wait(ANSWERS_WITHIN)
        assert self.append(record, progress()) == 3
        for subscription in subscriptions:
            subscription.close()


def facts(**metadata: object) -> Draft:
    """Return an event that adds metadata."""
    return Draft(type=EventType.ANNOTATED, data={"metadata": metadata})


class TailContract(StoreHarness):
    """Tests of ``tail``, ``in_flight`` and ``watch`` of any run."""

    def tail(self, after: int = 0, **how: object) -> list[Event]:
        """Return events after a place."""
        return [event for _, event in answer(self.store.tail(after, **how)).events]  # type: ignore[arg-type]

    def test_events_of_all_runs_are_told_in_the_order_in_which_they_came(self) -> None:
        one, other = self.start("a", running=False), self.start("b", running=False)
        for step in range(3):
            self.append(one, progress(step=step))
            self.append(other, progress(step=step))
        tail = answer(self.store.tail())
        assert [(event.run_id, event.data["step"]) for _, event in tail.events] == [
            (run, step) for step in range(3) for run in ("a", "b")
        ]
        places = [place for place, _ in tail.events]
        assert places == sorted(set(places))
        assert tail.place == places[-1]
        assert not tail.has_more
        assert [event for _, event in tail.events if event.run_id == "a"] == list(self.log("a"))

    def test_whoever_asks_after_the_last_place_misses_nothing_and_gets_nothing_twice(self) -> None:
        record = self.start("a", running=False)
        self.append(record, *(progress(step=step) for step in range(7)))
        steps: list[int] = []
        place, has_more = 0, True
        while has_more:
            tail = answer(self.store.tail(place, 3))
            steps += [event.data["step"] for _, event in tail.events]
            place, has_more = tail.place, tail.has_more
        assert steps == list(range(7))
        assert self.tail(place) == []
        self.append(record, progress(step=7))
        assert [event.data["step"] for event in self.tail(place)] == [7]

    def test_a_limit_of_none_tells_the_place_and_a_place_beyond_the_end_is_the_end(self) -> None:
        assert answer(self.store.tail(99)).place == 0
        self.append(self.start("a", running=False), progress())
        end = answer(self.store.tail()).place
        assert end > 0
        assert answer(self.store.tail(end + 10**6)).place == end
        assert answer(self.store.tail(end, 0)).place == end

    def test_only_events_of_some_types_are_told_if_asked_for(self) -> None:
        record = self.start("a")
        self.append(record, progress(), progress())
        self.finish(record)
        tail = answer(self.store.tail(types=[EventType.STATUS, EventType.DONE]))
        assert [event.type for _, event in tail.events] == [EventType.STATUS, EventType.STATUS, EventType.DONE]
        assert self.tail(tail.place) == []
        step = answer(self.store.tail(0, 1, types=[EventType.PROGRESS]))
        assert step.has_more
        assert len(self.tail(step.place, types=[EventType.PROGRESS])) == 1

    def test_a_tree_is_told_with_all_its_descendants_and_nobody_else(self) -> None:
        runs = [self.start("a"), self.start("other"), self.start("b", parent_id="a"), self.start("c", parent_id="b")]
        for record in runs:
            self.append(record, progress(of=record.id))
        run_ids = [event.data["of"] for event in self.tail(below="a", types=[EventType.PROGRESS])]
        assert run_ids == ["a", "b", "c"]
        assert {event.run_id for event in self.tail(below="b")} == {"b", "c"}
        assert_refused(RunNotFound, self.store.tail, below="nobody")

    def test_what_is_purged_is_told_no_more_and_its_places_are_not_given_again(self) -> None:
        self.append(self.start("live"), progress())
        self.finish(self.start("old"))
        end = answer(self.store.tail()).place
        self.advance(10)
        answer(self.store.purge(self.store.now()))
        assert {event.run_id for event in self.tail()} == {"live"}
        self.append(self.get("live"), progress(step="after"))
        assert [event.data for event in self.tail(end)] == [{"step": "after"}]

    def test_what_was_entered_and_not_left_is_in_flight_while_the_run_is_live(self) -> None:
        record, silent = self.start("a"), self.start("b")
        self.append(record, entered("llm", "ask"), entered("tool"), entered("llm", "ask"), left("tool"))
        run_ids = ["a", "b", "nobody"]
        assert answer(self.store.in_flight(run_ids)) == {"a": ("llm:ask", "llm:ask"), "b": ()}
        self.append(record, left("llm", "ask"))
        assert answer(self.store.in_flight(["a"])) == {"a": ("llm:ask",)}
        self.finish(record)
        self.finish(silent)
        assert answer(self.store.in_flight(run_ids)) == {}

    def test_a_log_that_is_truncated_does_not_say_what_is_in_flight(self) -> None:
        record = self.start("a", running=False)
        self.append(record, entered("llm"), *(progress() for _ in range(self.events_kept + 1)))
        assert answer(self.store.in_flight(["a"])) == {"a": None}

    def test_whoever_watches_any_run_is_woken_by_each(self) -> None:
        wakeup = threading.Event()
        self.worker()
        subscription = self.store.watch(ANY, wakeup.set)
        changes = (
            lambda: self.register("a"),
            lambda: self.append(self.get("a"), progress()),
            lambda: self.stop("a"),
            lambda: self.acknowledge(self.get("a"), Mode.GRACEFUL),
            lambda: self.finish(self.get("a"), Status.STOPPED),
        )
        for change in changes:
            wakeup.clear()
            change()
            assert wakeup.wait(ANSWERS_WITHIN)
        subscription.close()


def entered(kind: str, name: str | None = None) -> Draft:
    """Return the event of a boundary that was entered."""
    return Draft(type=EventType.ENTERED, data={"kind": kind, "name": name})


def left(kind: str, name: str | None = None) -> Draft:
    """Return the event of a boundary that was left."""
    return Draft(type=EventType.LEFT, data={"kind": kind, "name": name, "fate": "finished"})

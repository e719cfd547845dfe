"""Tests of the events of all runs: in order, without a gap; and of what is in flight."""

from __future__ import annotations

import threading

from stoppable._core.state import Mode, Status
from stoppable.errors import RunNotFound
from stoppable.records import Draft, Event, EventType
from stoppable.stores.listeners import ANY
from stoppable.testing.store_contract.harness import ANSWERS_WITHIN, StoreHarness, answer, progress, refused


class Arriving(StoreHarness):
    """Tests of ``tail``, ``in_flight`` and ``watch`` of any run."""

    def tail(self, after: int = 0, **how: object) -> list[Event]:
        """Return events after a place."""
        return [event for _, event in answer(self.store.tail(after, **how)).events]  # type: ignore[arg-type]

    def test_events_of_all_runs_are_told_in_the_order_in_which_they_came(self) -> None:
        one, other = self.start("a", running=False), self.start("b", running=False)
        for step in range(3):
            self.append(one, progress(step=step))
            self.append(other, progress(step=step))
        told = answer(self.store.tail())
        assert [(event.run_id, event.data["step"]) for _, event in told.events] == [
            (run, step) for step in range(3) for run in ("a", "b")
        ]
        places = [place for place, _ in told.events]
        assert places == sorted(set(places))
        assert told.place == places[-1]
        assert not told.has_more
        assert [event for _, event in told.events if event.run_id == "a"] == list(self.log("a"))

    def test_whoever_asks_after_the_last_place_misses_nothing_and_gets_nothing_twice(self) -> None:
        record = self.start("a", running=False)
        self.append(record, *(progress(step=step) for step in range(7)))
        seen: list[int] = []
        place, has_more = 0, True
        while has_more:
            told = answer(self.store.tail(place, 3))
            seen += [event.data["step"] for _, event in told.events]
            place, has_more = told.place, told.has_more
        assert seen == list(range(7))
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
        found = answer(self.store.tail(types=[EventType.STATUS, EventType.DONE]))
        assert [event.type for _, event in found.events] == [EventType.STATUS, EventType.STATUS, EventType.DONE]
        assert self.tail(found.place) == []
        step = answer(self.store.tail(0, 1, types=[EventType.PROGRESS]))
        assert step.has_more
        assert len(self.tail(step.place, types=[EventType.PROGRESS])) == 1

    def test_a_tree_is_told_with_all_its_descendants_and_nobody_else(self) -> None:
        runs = [self.start("a"), self.start("other"), self.start("b", parent_id="a"), self.start("c", parent_id="b")]
        for record in runs:
            self.append(record, progress(of=record.id))
        told = [event.data["of"] for event in self.tail(below="a", types=[EventType.PROGRESS])]
        assert told == ["a", "b", "c"]
        assert {event.run_id for event in self.tail(below="b")} == {"b", "c"}
        refused(RunNotFound, self.store.tail, below="nobody")

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
        wanted = ["a", "b", "nobody"]
        assert answer(self.store.in_flight(wanted)) == {"a": ("llm:ask", "llm:ask"), "b": ()}
        self.append(record, left("llm", "ask"))
        assert answer(self.store.in_flight(["a"])) == {"a": ("llm:ask",)}
        self.finish(record)
        self.finish(silent)
        assert answer(self.store.in_flight(wanted)) == {}

    def test_a_log_that_is_truncated_does_not_say_what_is_in_flight(self) -> None:
        record = self.start("a", running=False)
        self.append(record, entered("llm"), *(progress() for _ in range(self.events_kept + 1)))
        assert answer(self.store.in_flight(["a"])) == {"a": None}

    def test_whoever_watches_any_run_is_woken_by_each(self) -> None:
        woken = threading.Event()
        self.worker()
        subscription = self.store.watch(ANY, woken.set)
        changes = (
            lambda: self.register("a"),
            lambda: self.append(self.get("a"), progress()),
            lambda: self.stop("a"),
            lambda: self.acknowledge(self.get("a"), Mode.GRACEFUL),
            lambda: self.finish(self.get("a"), Status.STOPPED),
        )
        for change in changes:
            woken.clear()
            change()
            assert woken.wait(ANSWERS_WITHIN)
        subscription.close()


def entered(kind: str, name: str | None = None) -> Draft:
    """Return the event of a boundary that was entered."""
    return Draft(type=EventType.ENTERED, data={"kind": kind, "name": name})


def left(kind: str, name: str | None = None) -> Draft:
    """Return the event of a boundary that was left."""
    return Draft(type=EventType.LEFT, data={"kind": kind, "name": name, "fate": "finished"})

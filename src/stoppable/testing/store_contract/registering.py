"""Tests of starts: once, with a lease, refused by holds, and stopped by a stop that came first."""

from __future__ import annotations

from stoppable._core.policy import Limits, Policy
from stoppable._core.reason import ReasonKind
from stoppable._core.state import Mode, Status
from stoppable.errors import Fenced, InvalidArgument, RunConflict, RunHeld, RunNotFound
from stoppable.records import Draft, EventType, RunRecord, Selector, changed
from stoppable.stores.base import TOMBSTONE_SECONDS
from stoppable.testing.store_contract.harness import (
    StoreHarness,
    answer,
    intent,
    is_born_stopped,
    progress,
    refused,
    types_of,
)


class Registering(StoreHarness):
    """``register``."""

    def test_a_new_run_is_kept_as_it_was_given(self) -> None:
        self.worker()
        given = RunRecord(
            id="a",
            name="writer",
            owner="ann",
            labels={"team": "x"},
            worker="w",
            isolation="process",
            on_disconnect="stop",
            limits=Limits(seconds=9.5, boundaries={"llm": 3}),
            policy=Policy(grace=1.5),
            input={"question": "why?", "depth": [1, {"x": None}]},
            omitted={"client": "it has no JSON form"},
            metadata={"task": "t-1"},
        )
        registered = answer(self.store.register(given, "r"))
        record = registered.record
        assert registered.created
        assert (record.status, record.epoch, record.root_id, record.last_event) == (Status.PENDING, 1, "a", 0)
        assert (record.name, record.owner, record.labels, record.worker) == ("writer", "ann", {"team": "x"}, "w")
        assert (record.isolation, record.on_disconnect) == ("process", "stop")
        assert (record.limits, record.policy) == (given.limits, given.policy)
        assert (record.input, record.omitted, record.metadata) == (given.input, given.omitted, given.metadata)
        assert record.created_at == self.store.now()
        assert self.get("a") == record

    def test_an_input_of_any_length_comes_back_until_it_is_purged(self) -> None:
        self.worker()
        inputs = [{"text": "x" * length} for length in (0, 1000, 2030, 2048, 3000, 100_000)]
        for number, given in enumerate(inputs):
            record = self.register(f"run {number}", input=given).record
            assert record.input == self.get(record.id).input == given
            self.stop(record.id)
            assert self.finish(self.get(record.id), Status.STOPPED).input == given
        self.advance(10)
        assert answer(self.store.purge(self.store.now())) == len(inputs)
        assert self.register("run 5").record.input is None

    def test_a_text_is_kept_as_it_is_or_refused_and_never_another_one(self) -> None:
        """NUL and lone surrogates: not every engine can store them."""
        self.worker()
        for text in ("a\0b", "\0", "\ud800", "a\udfff"):
            plain = RunRecord(id=f"run {text!a}", name="agent", worker="w")
            for number, run in enumerate(
                (
                    changed(plain, owner=text),
                    changed(plain, name=text),
                    changed(plain, labels={text: text}),
                    changed(plain, input={text: text}),
                    changed(plain, id=text, root_id=text),
                )
            ):
                given = (
                    run if run.id == text else changed(run, id=f"{plain.id} {number}", root_id=f"{plain.id} {number}")
                )
                try:
                    answer(self.store.register(given, "r"))
                except InvalidArgument:
                    continue
                kept = self.get(given.id)
                assert changed(kept, created_at=0.0) == given
        assert self.register("after").created

    def test_what_is_kept_does_not_change_with_what_was_given(self) -> None:
        labels, data = {"team": "x"}, {"step": 1}
        record = self.start("a", labels=labels, running=False)
        self.append(record, Draft(type=EventType.PROGRESS, data=data))
        labels["team"] = "y"
        data["step"] = 2
        assert self.get("a").labels == {"team": "x"}
        assert [event.data for event in self.log("a")] == [{"step": 1}]

    def test_the_same_request_again_is_the_same_run_as_it_is_now(self) -> None:
        running = self.start("a")
        again = self.register("a")
        assert not again.created
        assert again.record == running

    def test_the_same_request_of_another_worker_is_the_same_run(self) -> None:
        self.start("a")
        self.worker("other")
        again = self.register("a", worker="other")
        assert (again.created, again.record.worker) == (False, "w")

    def test_the_same_id_with_another_request_is_a_conflict_that_changes_nothing(self) -> None:
        before = self.start("a")
        error = refused(RunConflict, self.store.register, RunRecord(id="a", name="other", worker="w"), "another")
        assert error.run_id == "a"
        assert self.get("a") == before

    def test_the_same_request_of_another_owner_is_a_conflict(self) -> None:
        self.start("a", owner="ann")
        refused(RunConflict, self.store.register, RunRecord(id="a", name="agent", owner="bob", worker="w"), "r")

    def test_a_child_has_the_root_of_its_parent(self) -> None:
        self.start("root")
        self.start("child", parent_id="root")
        leaf = self.start("leaf", parent_id="child")
        assert (leaf.parent_id, leaf.root_id) == ("child", "root")

    # A lease

    def test_a_start_needs_a_lease(self) -> None:
        refused(Fenced, self.store.register, RunRecord(id="a", name="agent", worker="nobody"), "r")
        refused(RunNotFound, self.store.get, "a")

    def test_a_worker_that_was_reaped_starts_nothing(self) -> None:
        self.worker(ttl=10)
        self.advance(11)
        self.reap()
        refused(Fenced, self.store.register, RunRecord(id="a", name="agent", worker="w"), "r")

    def test_a_worker_that_was_closed_starts_nothing(self) -> None:
        self.worker()
        answer(self.store.close_worker("w"))
        refused(Fenced, self.store.register, RunRecord(id="a", name="agent", worker="w"), "r")

    # Holds

    def test_a_hold_refuses_the_starts_that_it_matches_until_it_is_released(self) -> None:
        self.worker()
        hold = answer(self.store.place_hold(Selector(owner="ann"), intent(message="audit")))
        held = RunRecord(id="a", name="agent", owner="ann", worker="w")
        error = refused(RunHeld, self.store.register, held, "r")
        assert (error.hold_id, error.reason) == (hold.id, "audit")
        refused(RunNotFound, self.store.get, "a")
        assert self.register("b", owner="bob").created
        answer(self.store.release(hold.id))
        assert self.register("a", owner="ann").created

    def test_a_hold_matches_only_what_everything_given_matches(self) -> None:
        self.worker()
        answer(self.store.place_hold(Selector(name="mailer", labels={"team": "x", "env": "live"}), intent()))
        assert self.register("a", name="writer", labels={"team": "x", "env": "live"}).created
        assert self.register("b", name="mailer", labels={"team": "x"}).created
        labels = {"team": "x", "env": "live", "more": "y"}
        refused(RunHeld, self.store.register, RunRecord(id="c", name="mailer", labels=labels, worker="w"), "r")

    def test_a_hold_on_everything_refuses_everything(self) -> None:
        self.worker()
        answer(self.store.place_hold(Selector(all=True), intent()))
        refused(RunHeld, self.store.register, RunRecord(id="a", name="agent", worker="w"), "r")

    def test_under_a_hold_a_run_that_had_started_is_still_found_by_its_request(self) -> None:
        self.start("a", owner="ann")
        answer(self.store.place_hold(Selector(owner="ann"), intent()))
        assert not self.register("a", owner="ann").created

    def test_a_hold_lets_the_runs_that_were_let_in_have_children(self) -> None:
        self.start("a", owner="ann")
        answer(self.store.place_hold(Selector(owner="ann"), intent()))
        assert self.register("child", owner="ann", parent_id="a").record.status is Status.PENDING

    # Born stopped

    def test_a_child_of_a_stopping_parent_is_born_stopped_with_its_stop(self) -> None:
        self.start("a")
        self.stop("a", Mode.KILL, "runaway")
        born = self.register("child", parent_id="a")
        assert born.created
        assert is_born_stopped(born.record, intent(Mode.KILL, "runaway"))
        assert self.get("child") == born.record

    def test_a_child_of_a_parent_that_was_stopped_before_it_ran_is_born_stopped(self) -> None:
        self.start("a", running=False)
        self.stop("a")
        assert is_born_stopped(self.register("child", parent_id="a").record, intent())

    def test_a_child_of_a_parent_that_was_stopped_is_born_stopped(self) -> None:
        record = self.start("a")
        self.stop("a")
        self.finish(record, Status.STOPPED)
        assert is_born_stopped(self.register("child", parent_id="a").record, intent())

    def test_a_child_of_a_parent_that_has_ended_by_itself_is_born_stopped(self) -> None:
        for end in (Status.COMPLETED, Status.FAILED, Status.LOST):
            self.finish(self.start(end.value), end)
            child = self.register(f"child of {end}", parent_id=end.value).record
            assert child.stop is not None
            assert child.stop.reason.kind is ReasonKind.PARENT
            assert is_born_stopped(child, child.stop)

    def test_a_child_of_a_finished_child_of_a_stopping_run_is_born_stopped(self) -> None:
        self.start("a")
        self.finish(self.start("child", parent_id="a"))
        self.stop("a")
        assert self.register("leaf", parent_id="child").record.status is Status.STOPPED

    def test_a_run_that_was_born_stopped_is_over_for_its_worker(self) -> None:
        parent = self.start("a")
        self.stop("a")
        given = self.register("child", parent_id="a").record
        assert given.epoch > 1
        assert types_of(self.log("child")) == ["status", "done"]
        assert "child" not in self.intents()
        refused(Fenced, self.store.append, "child", 1, [progress()])
        assert self.finish(given, Status.COMPLETED).status is Status.STOPPED
        assert self.get("a").epoch == parent.epoch

    # A stop that came first

    def test_a_stop_that_came_before_its_run_stops_it_at_birth(self) -> None:
        self.worker()
        assert self.stop("a", Mode.IMMEDIATE, "changed my mind", if_unknown_hold=True).answers == ()
        assert is_born_stopped(self.register("a").record, intent(Mode.IMMEDIATE, "changed my mind"))

    def test_a_stop_that_came_first_waits_only_so_long(self) -> None:
        self.worker(ttl=1000)
        self.stop("a", if_unknown_hold=True)
        self.stop("b", if_unknown_hold=True)
        self.advance(TOMBSTONE_SECONDS - 1)
        assert self.register("a").record.status is Status.STOPPED
        self.advance(2)
        assert self.register("b").record.status is Status.PENDING

    def test_a_dry_run_of_a_stop_that_comes_first_leaves_nothing(self) -> None:
        self.worker()
        self.stop("a", if_unknown_hold=True, dry_run=True)
        assert self.register("a").record.status is Status.PENDING

    def test_of_two_stops_that_came_first_the_mode_only_rises_and_the_first_reason_stays(self) -> None:
        self.worker()
        self.stop("a", Mode.IMMEDIATE, "first", if_unknown_hold=True)
        self.stop("a", Mode.COOPERATIVE, "second", if_unknown_hold=True)
        assert is_born_stopped(self.register("a").record, intent(Mode.IMMEDIATE, "first"))
        self.stop("b", Mode.COOPERATIVE, "first", if_unknown_hold=True)
        self.stop("b", Mode.KILL, "second", if_unknown_hold=True)
        assert is_born_stopped(self.register("b").record, intent(Mode.KILL, "first"))

    def test_a_stop_that_came_first_is_for_the_runs_of_its_owner(self) -> None:
        self.worker()
        self.stop("a", owner="bob", if_unknown_hold=True)
        assert self.register("a", owner="ann").record.status is Status.PENDING
        self.stop("b", owner="ann", if_unknown_hold=True)
        assert self.register("b", owner="ann").record.status is Status.STOPPED

    def test_a_stop_of_nobody_that_came_first_is_for_the_run_of_whomever(self) -> None:
        self.worker()
        self.stop("a", if_unknown_hold=True)
        assert self.register("a", owner="ann").record.status is Status.STOPPED

    def test_nobody_takes_away_a_stop_of_another_owner_that_came_first(self) -> None:
        self.worker()
        self.stop("a", owner="ann", if_unknown_hold=True)
        self.stop("a", owner="bob", if_unknown_hold=True)
        assert self.register("a", owner="ann").record.status is Status.STOPPED

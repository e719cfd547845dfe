"""Tests of stops: durable, downward, only ever harder, and the same result for the same request."""

from __future__ import annotations

from stoppable._core.reason import Reason
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer
from stoppable.errors import InvalidArgument, RunHeld, RunNotFound
from stoppable.records import Filter, RunRecord, Selector, StopIntent, StopResult
from stoppable.testing.store_contract.harness import StoreHarness, answer, intent, listed, refused


class Stopping(StoreHarness):
    """``request_stop``."""

    def test_a_stop_is_kept_with_its_time_and_a_running_run_is_stopping(self) -> None:
        self.start("a")
        self.advance(5)
        result = self.stop("a", Mode.IMMEDIATE, "too dear")
        assert answers_of(result) == {"a": Answer.ACCEPTED}
        record = self.get("a")
        assert result.answers[0].record == record
        assert (record.status, record.stop) == (Status.STOPPING, intent(Mode.IMMEDIATE, "too dear"))
        assert record.stop_requested_at == self.store.now()
        assert record.acknowledged is None
        told = self.log("a")[-1]
        assert (told.type, told.data["status"], told.data["reason"]) == ("status", "stopping", "too dear")

    def test_a_run_that_has_not_begun_stays_pending_until_its_worker_ends_it(self) -> None:
        self.start("a", running=False)
        self.stop("a", Mode.KILL)
        assert self.get("a").status is Status.PENDING
        assert self.intents() == {"a": intent(Mode.KILL)}

    def test_a_stop_writes_no_end_for_a_worker_that_lives(self) -> None:
        self.start("a")
        for mode in Mode:
            self.stop("a", mode)
        assert self.get("a").status is Status.STOPPING

    def test_a_harder_stop_escalates_and_the_first_reason_and_time_stay(self) -> None:
        self.start("a")
        self.stop("a", Mode.COOPERATIVE, "first")
        requested = self.get("a").stop_requested_at
        self.advance(3)
        assert answers_of(self.stop("a", Mode.KILL, "second")) == {"a": Answer.ESCALATED}
        record = self.get("a")
        assert record.stop == intent(Mode.KILL, "first")
        assert record.stop_requested_at == requested

    def test_whoever_follows_a_run_hears_of_each_harder_stop_and_of_no_other(self) -> None:
        self.family()
        for mode in (Mode.COOPERATIVE, Mode.GRACEFUL, Mode.COOPERATIVE, Mode.GRACEFUL, Mode.KILL):
            self.stop("root", mode, mode.value)
        for name in ("root", "leaf"):
            told = [event.data for event in self.log(name) if event.data.get("status") == "stopping"]
            assert [data["mode"] for data in told] == ["cooperative", "graceful", "kill"]
            assert {data["reason"] for data in told} == {"cooperative"}  # the first one stays

    def test_a_stop_that_is_no_harder_changes_nothing(self) -> None:
        self.start("a")
        self.stop("a", Mode.IMMEDIATE, "first")
        before = self.get("a")
        self.advance(3)
        for mode in (Mode.COOPERATIVE, Mode.GRACEFUL, Mode.IMMEDIATE):
            assert answers_of(self.stop("a", mode, "again")) == {"a": Answer.ALREADY_STOPPING}
        assert self.get("a") == before

    def test_a_stop_of_a_run_that_is_over_changes_nothing(self) -> None:
        over = self.finish(self.start("a"))
        assert answers_of(self.stop("a", Mode.KILL)) == {"a": Answer.ALREADY_FINISHED}
        assert self.get("a") == over

    def test_a_stop_of_an_unknown_run_is_refused(self) -> None:
        assert refused(RunNotFound, self.store.request_stop, "a", intent()).run_id == "a"
        refused(RunNotFound, self.store.request_stop, "a", intent(), dry_run=True)

    def test_a_stop_keeps_its_grace_and_a_harder_one_brings_its_own(self) -> None:
        self.start("a")
        for mode, grace in ((Mode.COOPERATIVE, None), (Mode.GRACEFUL, 2.5), (Mode.GRACEFUL, 60.0)):
            answer(self.store.request_stop("a", StopIntent(mode=mode, grace=grace)))
        told = self.intents()["a"]
        assert (told.mode, told.grace) == (Mode.GRACEFUL, 2.5)

    # Downward only

    def test_a_stop_marks_the_whole_subtree_and_nothing_else(self) -> None:
        """G4: not the parent, not the siblings."""
        self.family()
        assert answers_of(self.stop("child")) == {"child": Answer.ACCEPTED}
        stopping = {run_id for run_id in FAMILY if self.get(run_id).stop == intent()}
        assert stopping == {"child", "leaf", "leaf 2"}
        untouched = [self.get(run_id) for run_id in ("root", "sibling", "stranger")]
        assert all(record.stop is None and record.status is Status.RUNNING for record in untouched)

    def test_a_stop_reaches_what_a_finished_run_left_behind(self) -> None:
        self.family()
        self.finish(self.get("child"))
        assert answers_of(self.stop("child")) == {"child": Answer.ALREADY_FINISHED}
        assert self.get("leaf").stop == intent()
        self.stop("root", Mode.KILL)
        assert self.get("leaf").stop == intent(Mode.KILL)

    def test_a_descendant_that_is_stopped_harder_stays_so(self) -> None:
        self.family()
        self.stop("leaf", Mode.KILL, "its own")
        self.stop("root", Mode.GRACEFUL, "all")
        assert self.get("leaf").stop == intent(Mode.KILL, "its own")
        assert self.get("leaf 2").stop == intent(Mode.GRACEFUL, "all")

    def test_a_stop_of_a_run_that_already_stops_reaches_the_runs_below_it(self) -> None:
        self.family()
        self.stop("root", Mode.COOPERATIVE)
        self.stop("child", Mode.IMMEDIATE)
        self.stop("root", Mode.GRACEFUL)
        modes = {run.id: run.mode for run in answer(self.store.tree("root"))}
        assert modes == {
            "root": Mode.GRACEFUL,
            "sibling": Mode.GRACEFUL,
            "child": Mode.IMMEDIATE,
            "leaf": Mode.IMMEDIATE,
            "leaf 2": Mode.IMMEDIATE,
        }

    def test_a_stop_reaches_the_bottom_of_a_deep_tree(self) -> None:
        self.worker()
        for depth in range(200):
            self.register(f"run {depth}", parent_id=f"run {depth - 1}" if depth else None)
        self.stop("run 50")
        stopped = [run.id for run in answer(self.store.tree("run 0")) if run.mode is not None]
        assert stopped == [f"run {depth}" for depth in range(50, 200)]

    def family(self) -> None:
        """Start a tree of three levels, and a run beside it."""
        for run_id, parent_id in FAMILY.items():
            self.start(run_id, parent_id=parent_id)

    # Idempotent by key

    def test_the_same_key_again_returns_the_first_answer_and_changes_nothing(self) -> None:
        self.start("a")
        first = self.stop("a", idempotency_key="k")
        self.advance(3)
        again = self.stop("a", Mode.KILL, "harder", idempotency_key="k")
        assert answers_of(again) == answers_of(first) == {"a": Answer.ACCEPTED}
        assert self.get("a").stop == intent()
        assert len(listed(self.store.audit())) == 1

    def test_the_same_key_returns_the_first_answer_also_when_the_run_is_over(self) -> None:
        record = self.start("a")
        self.stop("a", idempotency_key="k")
        self.finish(record, Status.STOPPED)
        assert answers_of(self.stop("a", idempotency_key="k")) == {"a": Answer.ACCEPTED}

    def test_the_same_key_of_a_bulk_stop_places_no_second_hold_and_stops_nothing_new(self) -> None:
        self.start("a", owner="ann")
        first = self.stop(Selector(owner="ann"), hold=True, idempotency_key="k")
        assert first.hold is not None
        answer(self.store.release(first.hold.id))
        self.start("b", owner="ann")
        again = self.stop(Selector(owner="ann"), hold=True, idempotency_key="k")
        assert (answers_of(again), again.hold) == ({"a": Answer.ACCEPTED}, first.hold)
        assert self.get("b").stop is None
        assert listed(self.store.holds()) == []

    def test_the_same_key_is_the_same_request_whatever_it_names(self) -> None:
        self.start("a")
        self.start("b")
        self.stop("a", idempotency_key="k")
        assert answers_of(self.stop("b", idempotency_key="k")) == {"a": Answer.ACCEPTED}
        assert self.get("b").stop is None

    def test_another_key_is_another_request(self) -> None:
        self.start("a")
        self.stop("a", idempotency_key="k")
        assert answers_of(self.stop("a", Mode.KILL, idempotency_key="l")) == {"a": Answer.ESCALATED}

    def test_a_key_of_one_owner_says_nothing_to_another(self) -> None:
        self.start("a", owner="ann")
        self.start("b", owner="bob")
        self.stop("a", idempotency_key="k", owner="ann")
        assert answers_of(self.stop("b", idempotency_key="k", owner="bob")) == {"b": Answer.ACCEPTED}
        assert self.get("b").stop == intent()

    # Dry runs

    def test_a_dry_run_says_what_a_stop_would_do_and_does_nothing(self) -> None:
        self.start("a", owner="ann")
        before, log = self.get("a"), self.log("a")
        result = self.stop(Selector(owner="ann"), dry_run=True, hold=True, idempotency_key="k")
        assert answers_of(result) == {"a": Answer.ACCEPTED}
        assert (self.get("a"), self.log("a"), self.intents()) == (before, log, {})
        assert (listed(self.store.holds()), listed(self.store.audit())) == ([], [])
        assert self.register("b", owner="ann").created

    def test_a_dry_run_does_not_use_up_its_key(self) -> None:
        self.start("a")
        self.stop("a", idempotency_key="k", dry_run=True)
        self.stop("a", idempotency_key="k")
        assert self.get("a").stop == intent()

    # Selectors and owners

    def test_a_selector_stops_the_live_runs_that_everything_given_matches(self) -> None:
        self.start("a", owner="ann", name="writer", labels={"team": "x", "env": "live"})
        self.start("b", owner="ann", name="writer", labels={"team": "x"})
        self.start("c", owner="ann", name="mailer", labels={"team": "y"})
        self.start("d", owner="bob", name="mailer", labels={"team": "y"})
        self.finish(self.start("e", owner="ann", name="writer", labels={"team": "x"}))
        for selector, meant in (
            (Selector(owner="ann", name="writer"), {"a", "b"}),
            (Selector(labels={"team": "x", "env": "live"}), {"a"}),
            (Selector(name="mailer"), {"c", "d"}),
            (Selector(owner="ann"), {"a", "b", "c"}),
            (Selector(all=True), {"a", "b", "c", "d"}),
            (Selector(owner="nobody"), set()),
        ):
            assert answers_of(self.stop(selector, dry_run=True)) == dict.fromkeys(meant, Answer.ACCEPTED)
        self.stop(Selector(owner="ann", name="writer"))
        assert {run_id for run_id in "abcde" if self.get(run_id).stop} == {"a", "b"}

    def test_a_selector_answers_for_the_topmost_of_the_runs_that_it_means_and_marks_their_subtrees(self) -> None:
        self.start("a", owner="ann")
        self.start("child", owner="ann", parent_id="a")
        self.start("other", name="other", owner="bob", parent_id="child")
        self.start("grandchild", owner="ann", parent_id="other")
        self.stop("child")
        result = self.stop(Selector(owner="ann"), Mode.KILL, "bulk")
        assert answers_of(result) == {"a": Answer.ACCEPTED}
        assert self.get("child").stop == self.get("other").stop == intent(Mode.KILL)
        assert self.get("grandchild").stop == intent(Mode.KILL)

    def test_a_selector_finds_a_run_below_others_that_it_does_not_mean_or_that_are_over(self) -> None:
        over = self.start("over", name="mailer")
        self.start("left", name="mailer", parent_id="over")
        self.start("root", name="writer")
        self.start("child", name="mailer", parent_id="root")
        self.start("grandchild", name="mailer", parent_id="child")
        self.finish(over)
        assert answers_of(self.stop(Selector(name="mailer"))) == {"left": Answer.ACCEPTED, "child": Answer.ACCEPTED}
        assert self.get("root").stop is None
        assert self.get("grandchild").stop == intent()

    def test_names_are_compared_as_they_are_whatever_is_in_them(self) -> None:
        """Quotes, paths, patterns and upper case have no special meaning; no owner differs from an empty one."""
        odd = ('"', "'; --", "%", "a.b", "$[0]", "A", "a", "ä", "a\u0308", "", "NULL", "0")
        for number, text in enumerate(odd):
            self.start(f"run {number}", owner=text, name=text or "agent", labels={text: text})
        self.start("nobody's")
        for number, text in enumerate(odd):
            expected = {f"run {number}": Answer.ACCEPTED}
            assert answers_of(self.stop(Selector(owner=text), dry_run=True)) == expected, text
            assert answers_of(self.stop(Selector(labels={text: text}), dry_run=True)) == expected, text
            found = answer(self.store.query(Filter(owner=text, name=text or "agent", labels={text: text})))
            assert [record.id for record in found.runs] == list(expected), text

    def test_a_run_of_another_owner_is_not_found(self) -> None:
        before = self.start("a", owner="ann")
        refused(RunNotFound, self.store.request_stop, "a", intent(), owner="bob")
        assert self.get("a") == before
        assert answers_of(self.stop("a", owner="ann")) == {"a": Answer.ACCEPTED}

    def test_a_run_of_nobody_is_not_found_by_an_owner(self) -> None:
        self.start("a")
        refused(RunNotFound, self.store.request_stop, "a", intent(), owner="bob")

    def test_a_selector_of_an_owner_means_only_his_runs(self) -> None:
        self.start("a", owner="ann")
        self.start("b", owner="bob")
        assert answers_of(self.stop(Selector(all=True), owner="bob")) == {"b": Answer.ACCEPTED}
        assert answers_of(self.stop(Selector(owner="ann"), owner="bob")) == {}
        assert self.get("a").stop is None

    def test_a_stop_of_an_unknown_run_that_may_wait_is_not_one_of_a_run_of_another_owner(self) -> None:
        before = self.start("a", owner="ann")
        assert answers_of(self.stop("a", owner="bob", if_unknown_hold=True)) == {}
        assert self.get("a") == before

    # With a hold

    def test_a_bulk_stop_may_place_a_hold(self) -> None:
        self.start("a", owner="ann")
        result = self.stop(Selector(owner="ann"), message="incident", hold=True)
        hold = result.hold
        assert hold is not None
        assert (hold.selector, hold.created_at) == (Selector(owner="ann"), self.store.now())
        assert hold.reason == Reason(message="incident", actor="ann", at=5.0)
        assert listed(self.store.holds()) == [hold]
        assert self.get("a").stop is not None
        refused(RunHeld, self.store.register, RunRecord(id="b", name="agent", owner="ann", worker="w"), "r")

    def test_a_hold_is_placed_also_where_no_run_matches(self) -> None:
        self.worker()
        assert self.stop(Selector(owner="ann"), hold=True).answers == ()
        refused(RunHeld, self.store.register, RunRecord(id="a", name="agent", owner="ann", worker="w"), "r")

    def test_a_stop_without_a_hold_lets_new_runs_start(self) -> None:
        self.start("a", owner="ann")
        assert self.stop(Selector(owner="ann")).hold is None
        assert self.register("b", owner="ann").record.status is Status.PENDING

    def test_a_hold_needs_a_selector(self) -> None:
        before = self.start("a")
        refused(InvalidArgument, self.store.request_stop, "a", intent(), hold=True)
        assert self.get("a") == before

    def test_a_hold_of_an_owner_refuses_only_his_starts(self) -> None:
        self.worker()
        self.stop(Selector(name="agent"), hold=True, owner="bob")
        assert self.register("a", owner="ann").created
        refused(RunHeld, self.store.register, RunRecord(id="b", name="agent", owner="bob", worker="w"), "r")

    def test_nobody_holds_the_starts_of_another_owner(self) -> None:
        self.worker()
        self.stop(Selector(owner="ann"), hold=True, owner="bob")
        assert self.register("a", owner="ann").created


FAMILY: dict[str, str | None] = {
    "root": None,
    "child": "root",
    "sibling": "root",
    "leaf": "child",
    "leaf 2": "child",
    "stranger": None,
}


def answers_of(result: StopResult) -> dict[str, Answer]:
    """Return the answer of a stop for each run."""
    return {each.record.id: each.answer for each in result.answers}

"""Tests of stops: of one run, of many, and of the runs of a key."""

from __future__ import annotations

from typing import Any

from stoppable._core.stop import Answer
from stoppable._core.values import Mode, Reason, Status
from stoppable.errors import InvalidArgument, RunHeld, RunNotFound
from stoppable.records import Filter, RunRecord, Selector, StopIntent, StopRequest, StopResult
from stoppable.stores.base import NEXT_TURN_SECONDS, TOMBSTONE_SECONDS
from stoppable.testing.store_contract.harness import (
    StoreHarness,
    answer,
    assert_refused,
    intent,
    is_born_stopped,
    list_of,
)


class StopContract(StoreHarness):
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
        event = self.log("a")[-1]
        assert (event.type, event.data["status"], event.data["reason"]) == ("status", "stopping", "too dear")

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
            changes = [event.data for event in self.log(name) if event.data.get("status") == "stopping"]
            assert [data["mode"] for data in changes] == ["cooperative", "graceful", "kill"]
            assert {data["reason"] for data in changes} == {"cooperative"}  # the first one stays

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
        assert (
            assert_refused(RunNotFound, self.store.request_stop, StopRequest(target="a", intent=intent())).run_id == "a"
        )
        assert_refused(RunNotFound, self.store.request_stop, StopRequest(target="a", intent=intent(), dry_run=True))

    def test_a_stop_keeps_its_grace_and_a_harder_one_brings_its_own(self) -> None:
        self.start("a")
        for mode, grace in ((Mode.COOPERATIVE, None), (Mode.GRACEFUL, 2.5), (Mode.GRACEFUL, 60.0)):
            answer(self.store.request_stop(StopRequest(target="a", intent=StopIntent(mode=mode, grace=grace))))
        pending_stop = self.intents()["a"]
        assert (pending_stop.mode, pending_stop.grace) == (Mode.GRACEFUL, 2.5)

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
        assert len(list_of(self.store.audit())) == 1

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
        assert list_of(self.store.holds()) == []

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
        assert (list_of(self.store.holds()), list_of(self.store.audit())) == ([], [])
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
        for selector, expected in (
            (Selector(owner="ann", agent="writer"), {"a", "b"}),
            (Selector(labels={"team": "x", "env": "live"}), {"a"}),
            (Selector(agent="mailer"), {"c", "d"}),
            (Selector(owner="ann"), {"a", "b", "c"}),
            (Selector(all=True), {"a", "b", "c", "d"}),
            (Selector(owner="nobody"), set()),
        ):
            assert answers_of(self.stop(selector, dry_run=True)) == dict.fromkeys(expected, Answer.ACCEPTED)
        self.stop(Selector(owner="ann", agent="writer"))
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
        assert answers_of(self.stop(Selector(agent="mailer"))) == {"left": Answer.ACCEPTED, "child": Answer.ACCEPTED}
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
            page = answer(self.store.query(Filter(owner=text, agent=text or "agent", labels={text: text})))
            assert [record.id for record in page.runs] == list(expected), text

    def test_a_run_of_another_owner_is_not_found(self) -> None:
        before = self.start("a", owner="ann")
        assert_refused(RunNotFound, self.store.request_stop, StopRequest(target="a", intent=intent(), owner="bob"))
        assert self.get("a") == before
        assert answers_of(self.stop("a", owner="ann")) == {"a": Answer.ACCEPTED}

    def test_a_run_of_nobody_is_not_found_by_an_owner(self) -> None:
        self.start("a")
        assert_refused(RunNotFound, self.store.request_stop, StopRequest(target="a", intent=intent(), owner="bob"))

    def test_a_selector_of_an_owner_means_only_his_runs(self) -> None:
        self.start("a", owner="ann")
        self.start("b", owner="bob")
        assert answers_of(self.stop(Selector(all=True), owner="bob")) == {"b": Answer.ACCEPTED}
        assert answers_of(self.stop(Selector(owner="ann"), owner="bob")) == {}
        assert self.get("a").stop is None

    def test_a_stop_of_an_unknown_run_that_may_wait_is_not_one_of_a_run_of_another_owner(self) -> None:
        before = self.start("a", owner="ann")
        assert answers_of(self.stop("a", owner="bob", if_unknown="wait")) == {}
        assert self.get("a") == before

    # With a hold

    def test_a_bulk_stop_may_place_a_hold(self) -> None:
        self.start("a", owner="ann")
        result = self.stop(Selector(owner="ann"), message="incident", hold=True)
        hold = result.hold
        assert hold is not None
        assert (hold.selector, hold.created_at) == (Selector(owner="ann"), self.store.now())
        assert hold.reason == Reason(message="incident", actor="ann", at=5.0)
        assert list_of(self.store.holds()) == [hold]
        assert self.get("a").stop is not None
        assert_refused(RunHeld, self.store.register, RunRecord(id="b", name="agent", owner="ann", worker="w"), "r")

    def test_a_hold_is_placed_also_where_no_run_matches(self) -> None:
        self.worker()
        assert self.stop(Selector(owner="ann"), hold=True).answers == ()
        assert_refused(RunHeld, self.store.register, RunRecord(id="a", name="agent", owner="ann", worker="w"), "r")

    def test_a_stop_without_a_hold_lets_new_runs_start(self) -> None:
        self.start("a", owner="ann")
        assert self.stop(Selector(owner="ann")).hold is None
        assert self.register("b", owner="ann").record.status is Status.PENDING

    def test_a_hold_needs_a_selector(self) -> None:
        before = self.start("a")
        assert_refused(InvalidArgument, self.store.request_stop, StopRequest(target="a", intent=intent(), hold=True))
        assert self.get("a") == before

    def test_a_hold_of_an_owner_refuses_only_his_starts(self) -> None:
        self.worker()
        self.stop(Selector(agent="agent"), hold=True, owner="bob")
        assert self.register("a", owner="ann").created
        assert_refused(RunHeld, self.store.register, RunRecord(id="b", name="agent", owner="bob", worker="w"), "r")

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


class KeyContract(StoreHarness):
    """``register`` with a key, and ``request_stop`` of one."""

    def stop_key(self, key: str, mode: Mode = Mode.GRACEFUL, message: str = "enough", **how: Any) -> StopResult:
        """Request a stop by key."""
        selector = Selector(key=key, owner=how.get("owner"))
        return self.stop(selector, mode, message, **{"if_unknown": "wait", **how})

    def ids(self, wanted: Filter) -> list[str]:
        """Return the ids of the runs that a filter finds."""
        return [record.id for record in answer(self.store.query(wanted)).runs]

    def test_a_record_has_its_key_and_a_list_finds_it(self) -> None:
        self.start("a", key="chat 1")
        self.start("b", key="chat 2")
        self.start("c")
        self.finish(self.start("d", key="chat 1"))
        assert [self.get(run_id).key for run_id in "abcd"] == ["chat 1", "chat 2", None, "chat 1"]
        assert self.ids(Filter(key="chat 1")) == ["d", "a"]
        assert self.ids(Filter(key="chat 1", status=frozenset({Status.RUNNING}))) == ["a"]
        assert self.ids(Filter(key="chat")) == []

    def test_a_key_is_not_inherited(self) -> None:
        self.start("a", key="k")
        self.start("child", parent_id="a")
        assert self.get("child").key is None
        assert self.ids(Filter(key="k")) == ["a"]

    def test_a_list_shows_roots_only_if_asked_to(self) -> None:
        self.start("a", key="k", owner="ann")
        self.start("child", parent_id="a", owner="ann")
        self.start("b", owner="ann")
        assert self.ids(Filter(owner="ann")) == ["b", "child", "a"]
        assert self.ids(Filter(owner="ann", roots=True)) == ["b", "a"]

    def test_any_text_is_a_key(self) -> None:
        """Quotes, patterns, upper case, NUL, lone surrogates, empty and very long texts are keys like others."""
        for number, text in enumerate(ODD):
            self.start(f"run {number}", key=text)
        for number, text in enumerate(ODD):
            assert self.get(f"run {number}").key == text
            assert self.ids(Filter(key=text)) == [f"run {number}"], text[:40]
            assert answers_of(self.stop_key(text)) == {f"run {number}": Answer.ACCEPTED}, text[:40]
        for text in ODD:
            late = f"another {text}"
            assert self.stop_key(late).waits_until is not None
            assert self.register(f"of {ODD.index(text)}", key=late).record.status is Status.STOPPED

    # While it runs

    def test_a_stop_of_a_key_means_its_live_runs_with_their_subtrees(self) -> None:
        self.start("a", key="k")
        self.start("child", parent_id="a")
        self.start("b", key="k", worker="v")
        self.start("other", key="l")
        self.finish(self.start("over", key="k"))
        result = self.stop_key("k", Mode.IMMEDIATE)
        assert (answers_of(result), result.waits_until) == (dict.fromkeys("ab", Answer.ACCEPTED), None)
        stopped = [run_id for run_id in ("a", "b", "child", "other") if self.get(run_id).stop is not None]
        assert stopped == ["a", "b", "child"]
        assert set(self.intents("v")) == {"b"}

    def test_a_run_that_has_not_begun_is_live(self) -> None:
        self.start("a", key="k", running=False)
        assert answers_of(self.stop_key("k")) == {"a": Answer.ACCEPTED}
        assert self.register("b", key="k").record.status is Status.PENDING

    def test_a_stop_of_a_key_can_be_repeated_and_escalated(self) -> None:
        self.start("a", key="k")
        answers = [answers_of(self.stop_key("k", mode))["a"] for mode in (Mode.GRACEFUL, Mode.GRACEFUL, Mode.KILL)]
        assert answers == [Answer.ACCEPTED, Answer.ALREADY_STOPPING, Answer.ESCALATED]

    # Before it runs

    def test_a_stop_that_comes_first_stops_the_next_run_of_its_key_and_no_other(self) -> None:
        self.worker()
        result = self.stop_key("k", Mode.KILL, "not now")
        assert (result.answers, result.waits_until) == ((), self.store.now() + TOMBSTONE_SECONDS)
        assert self.register("other", key="l").record.status is Status.PENDING
        assert self.register("none").record.status is Status.PENDING
        assert is_born_stopped(self.register("a", key="k").record, intent(Mode.KILL, "not now"))
        assert self.register("b", key="k").record.status is Status.PENDING

    def test_a_start_that_is_repeated_uses_up_nothing(self) -> None:
        self.start("a", key="k", running=False)
        self.finish(self.get("a"))
        self.stop_key("k")
        assert not self.register("a", key="k").created
        assert self.register("b", key="k").record.status is Status.STOPPED

    def test_a_stop_waits_for_its_key_only_so_long(self) -> None:
        for key, seconds in (("k", TOMBSTONE_SECONDS - 1), ("l", TOMBSTONE_SECONDS + 1)):
            self.stop_key(key)
            self.advance(seconds)
            self.worker(key)
            born = self.register(key, key=key, worker=key).record.status
            assert (born is Status.STOPPED) == (seconds < TOMBSTONE_SECONDS)

    def test_stops_that_wait_add_up_as_those_of_a_run_do(self) -> None:
        self.worker()
        for mode, message in ((Mode.GRACEFUL, "first"), (Mode.KILL, "second"), (Mode.COOPERATIVE, "third")):
            self.stop_key("k", mode, message)
        assert is_born_stopped(self.register("a", key="k").record, intent(Mode.KILL, "first"))

    def test_a_stop_does_not_wait_unless_it_may(self) -> None:
        self.worker()
        assert self.stop_key("k", if_unknown="ignore") == StopResult()
        assert self.stop_key("k", dry_run=True) == StopResult()
        assert self.register("a", key="k").record.status is Status.PENDING

    def test_only_a_key_alone_is_waited_for(self) -> None:
        for selector in (Selector(owner="ann"), Selector(key="k", agent="agent"), Selector(key="k", labels={"a": "b"})):
            assert_refused(
                InvalidArgument,
                self.store.request_stop,
                StopRequest(target=selector, intent=intent(), if_unknown="wait"),
            )
        self.worker()
        assert self.register("a", key="k").record.status is Status.PENDING

    # After it ran

    def test_a_stop_after_the_last_run_waits_a_moment_for_the_next(self) -> None:
        self.finish(self.start("a", key="k"))
        before = self.get("a")
        result = self.stop_key("k")
        assert (result.answers, result.waits_until) == ((), self.store.now() + NEXT_TURN_SECONDS)
        assert self.register("b", key="k").record.status is Status.STOPPED
        self.stop_key("k")
        self.advance(NEXT_TURN_SECONDS + 1)
        assert self.register("c", key="k").record.status is Status.PENDING
        assert self.get("a") == before

    def test_a_stop_after_the_last_run_does_not_meet_the_next_unless_it_says_so(self) -> None:
        self.finish(self.start("a", key="k", owner="ann"))
        assert self.stop_key("k", if_unknown=None) == StopResult()
        assert self.register("b", key="k").record.status is Status.PENDING
        first = self.stop_key("l", if_unknown=None)
        assert first.waits_until == self.store.now() + TOMBSTONE_SECONDS
        assert self.register("c", key="l").record.status is Status.STOPPED
        other = Selector(key="k", agent="another agent")
        assert self.stop(other, if_unknown=None) == StopResult()

    def test_a_stop_that_is_repeated_by_its_idempotency_key_does_not_meet_the_next_run(self) -> None:
        self.start("a", key="k")
        first = self.stop_key("k", idempotency_key="once")
        self.finish(self.get("a"), Status.STOPPED)
        assert answers_of(self.stop_key("k", idempotency_key="once")) == answers_of(first)
        assert self.register("b", key="k").record.status is Status.PENDING

    def test_a_stop_that_waited_is_not_placed_again_by_its_idempotency_key(self) -> None:
        self.worker()
        first = self.stop_key("k", idempotency_key="once")
        assert self.register("a", key="k").record.status is Status.STOPPED
        assert self.stop_key("k", idempotency_key="once") == first
        assert self.register("b", key="k").record.status is Status.PENDING

    # Owners, holds, audit

    def test_a_stop_of_an_owner_means_his_runs_of_a_key(self) -> None:
        self.start("a", key="k", owner="ann")
        self.start("b", key="k", owner="bob")
        assert answers_of(self.stop_key("k", owner="bob")) == {"b": Answer.ACCEPTED}
        assert self.get("a").stop is None
        assert answers_of(self.stop_key("k")) == {"a": Answer.ACCEPTED, "b": Answer.ALREADY_STOPPING}

    def test_a_stop_of_an_owner_waits_for_a_run_of_his(self) -> None:
        self.start("a", key="k", owner="ann")
        assert self.stop_key("k", owner="bob").waits_until == self.store.now() + TOMBSTONE_SECONDS
        assert self.register("b", key="k", owner="ann").record.status is Status.PENDING
        assert self.register("c", key="k").record.status is Status.PENDING
        assert self.register("d", key="k", owner="bob").record.status is Status.STOPPED

    def test_a_stop_of_nobody_in_particular_waits_for_any_run_of_the_key(self) -> None:
        self.worker()
        self.stop_key("k")
        assert self.register("a", key="k", owner="ann").record.status is Status.STOPPED

    def test_a_hold_of_a_key_refuses_its_starts(self) -> None:
        self.worker()
        self.stop(Selector(key="k"), hold=True)
        assert_refused(RunHeld, self.store.register, RunRecord(id="a", name="agent", key="k", worker="w"), "r")
        assert self.register("b", key="l").created

    def test_the_audit_has_the_key_of_a_stop(self) -> None:
        self.start("a", key="k")
        self.stop_key("k")
        self.stop_key("l")
        entries = list_of(self.store.audit())
        assert [entry.target["selector"]["key"] for entry in entries] == ["k", "l"]
        assert [entry.result["runs"] for entry in entries] == [{"a": "accepted"}, {}]


ODD = (
    *('"', "'; --", "%", "a.b", "$[0]", "A", "a", "ä", "a\u0308", "", "NULL", "0", "null", "\\u0000", " ", "a "),
    *("\0", "a\0b", "\ud800", "\udfff\ud800", "\n", "🛑", "adk:app/user/session?x=1#y", "x" * 100_000),
)

"""Tests of keys: the second address of a run, also before the run exists."""

from __future__ import annotations

from typing import Any

from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer
from stoppable.errors import InvalidArgument, RunHeld
from stoppable.records import Filter, RunRecord, Selector, StopResult
from stoppable.stores.base import NEXT_TURN_SECONDS, TOMBSTONE_SECONDS
from stoppable.testing.store_contract.harness import StoreHarness, answer, intent, is_born_stopped, listed, refused
from stoppable.testing.store_contract.stopping import answers_of


class Keys(StoreHarness):
    """``register`` with a key, and ``request_stop`` of one."""

    def stop_key(self, key: str, mode: Mode = Mode.GRACEFUL, message: str = "enough", **how: Any) -> StopResult:
        """Request a stop by key."""
        selector = Selector(key=key, owner=how.get("owner"))
        return self.stop(selector, mode, message, **{"if_unknown_hold": True, **how})

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
        assert self.stop_key("k", if_unknown_hold=False) == StopResult()
        assert self.stop_key("k", dry_run=True) == StopResult()
        assert self.register("a", key="k").record.status is Status.PENDING

    def test_only_a_key_alone_is_waited_for(self) -> None:
        for selector in (Selector(owner="ann"), Selector(key="k", name="agent"), Selector(key="k", labels={"a": "b"})):
            refused(InvalidArgument, self.store.request_stop, selector, intent(), if_unknown_hold=True)
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
        assert self.stop_key("k", if_unknown_hold=None) == StopResult()
        assert self.register("b", key="k").record.status is Status.PENDING
        first = self.stop_key("l", if_unknown_hold=None)
        assert first.waits_until == self.store.now() + TOMBSTONE_SECONDS
        assert self.register("c", key="l").record.status is Status.STOPPED
        other = Selector(key="k", name="another agent")
        assert self.stop(other, if_unknown_hold=None) == StopResult()

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
        refused(RunHeld, self.store.register, RunRecord(id="a", name="agent", key="k", worker="w"), "r")
        assert self.register("b", key="l").created

    def test_the_audit_has_the_key_of_a_stop(self) -> None:
        self.start("a", key="k")
        self.stop_key("k")
        self.stop_key("l")
        entries = listed(self.store.audit())
        assert [entry.target["selector"]["key"] for entry in entries] == ["k", "l"]
        assert [entry.result["runs"] for entry in entries] == [{"a": "accepted"}, {}]


ODD = (
    *('"', "'; --", "%", "a.b", "$[0]", "A", "a", "ä", "a\u0308", "", "NULL", "0", "null", "\\u0000", " ", "a "),
    *("\0", "a\0b", "\ud800", "\udfff\ud800", "\n", "🛑", "adk:app/user/session?x=1#y", "x" * 100_000),
)

"""Tests of lists, trees and counts; of holds, the audit and retention."""

from __future__ import annotations

from stoppable._core.values import Mode, Status
from stoppable.errors import HoldNotFound, InvalidArgument, RunNotFound
from stoppable.records import ErrorRecord, Filter, OutcomeRecord, RunSummary, Selector, StopRequest
from stoppable.testing.store_contract.harness import StoreHarness, answer, assert_refused, intent, list_of


class QueryContract(StoreHarness):
    """Tests of ``get``, ``query``, ``tree``, ``counts``, holds, audit and retention."""

    def test_an_unknown_run_is_not_found(self) -> None:
        assert assert_refused(RunNotFound, self.store.get, "a").run_id == "a"
        assert_refused(RunNotFound, self.store.tree, "a")

    # Query

    def test_a_list_tells_of_a_run_what_its_summary_does_and_the_record_has_the_rest(self) -> None:
        error = ErrorRecord(type="ValueError", message="m" * 5000, trace="t" * 5000)
        for name, outcome in {
            "short": OutcomeRecord(status=Status.COMPLETED, result="x"),
            "long": OutcomeRecord(status=Status.COMPLETED, result="x" * 100_000, omitted={"partial": "too large"}),
            "failed": OutcomeRecord(status=Status.FAILED, partial=["x" * 9000], clean=False, error=error),
        }.items():
            record = self.start(name)
            answer(self.store.finish(record.id, record.epoch, outcome, None))
            assert self.get(name).outcome == outcome
        self.stop(self.start("stopping").id)
        page = answer(self.store.query(Filter()))
        assert list(page.runs) == [RunSummary.of(self.get(name)) for name in ("stopping", "failed", "long", "short")]

    def test_the_newest_run_comes_first(self) -> None:
        for run_id in "abc":
            self.start(run_id)
            self.advance(1)
        self.finish(self.get("b"))
        assert self.ids_of(Filter()) == ["c", "b", "a"]

    def test_runs_of_the_same_moment_have_an_order_too(self) -> None:
        for run_id in "cab":
            self.start(run_id)
        assert self.ids_of(Filter()) == ["b", "a", "c"]

    def test_a_filter_shows_the_runs_that_everything_given_matches(self) -> None:
        self.start("a", owner="ann", name="writer", labels={"team": "x", "env": "live"})
        self.start("b", owner="bob", name="writer", labels={"team": "x"}, running=False)
        self.start("c", owner="ann", name="mailer", parent_id="a")
        self.finish(self.start("d", owner="ann", name="mailer", parent_id="a"))
        for wanted, expected in (
            (Filter(owner="ann"), "dca"),
            (Filter(agent="writer"), "ba"),
            (Filter(parent_id="a"), "dc"),
            (Filter(labels={"team": "x"}), "ba"),
            (Filter(labels={"team": "x", "env": "live"}), "a"),
            (Filter(labels={"team": "y"}), ""),
            (Filter(status=frozenset({Status.RUNNING})), "ca"),
            (Filter(status=frozenset({Status.PENDING, Status.COMPLETED})), "db"),
            (Filter(owner="ann", agent="mailer", status=frozenset({Status.RUNNING})), "c"),
            (Filter(owner="nobody"), ""),
        ):
            assert self.ids_of(wanted) == list(expected), wanted

    def test_pages_show_every_run_once(self) -> None:
        for number in range(11):
            self.start(f"run {number}", owner="ann" if number % 2 else "bob", running=False)
        assert self.pages(Filter(), 4) == [4, 4, 3]
        assert self.pages(Filter(owner="ann"), 2) == [2, 2, 1]
        assert self.pages(Filter(owner="ann"), 5) == [5]

    def test_a_run_that_starts_or_ends_meanwhile_shifts_no_page(self) -> None:
        for number in range(6):
            self.start(f"run {number}")
        first = answer(self.store.query(Filter(), None, 3))
        self.start("newcomer")
        self.finish(self.get("run 5"))
        self.finish(self.get("run 2"))
        second = answer(self.store.query(Filter(), first.cursor, 3))
        assert [record.id for record in second.runs] == ["run 2", "run 1", "run 0"]
        assert second.cursor is None

    def test_a_cursor_that_is_none_of_ours_is_refused(self) -> None:
        for cursor in ("", "x", "-1", "1.5", "9" * 5000, "1 OR 1"):
            assert_refused(InvalidArgument, self.store.query, Filter(), cursor)

    def test_a_page_has_room_for_one_run_at_least(self) -> None:
        for limit in (0, -1):
            assert_refused(InvalidArgument, self.store.query, Filter(), None, limit)

    def ids_of(self, wanted: Filter) -> list[str]:
        """Return the ids of the runs that a list shows."""
        return [record.id for record in answer(self.store.query(wanted)).runs]

    def pages(self, wanted: Filter, limit: int) -> list[int]:
        """Return how many runs each page shows; none of them twice."""
        run_ids: list[str] = []
        sizes: list[int] = []
        cursor: str | None = None
        while not sizes or cursor is not None:
            page = answer(self.store.query(wanted, cursor, limit))
            run_ids += [record.id for record in page.runs]
            sizes.append(len(page.runs))
            cursor = page.cursor
        assert len(run_ids) == len(set(run_ids))
        return sizes

    # Tree and counts

    def test_a_tree_has_parents_before_children_and_no_others(self) -> None:
        self.start("root")
        self.start("a", parent_id="root")
        self.start("b", parent_id="root")
        self.finish(self.start("aa", parent_id="a"))
        self.start("aaa", parent_id="b")
        self.start("stranger")
        tree = answer(self.store.tree("root"))
        places = {record.id: place for place, record in enumerate(tree)}
        assert set(places) == {"root", "a", "b", "aa", "aaa"}
        assert all(record.parent_id is None or places[record.parent_id] < places[record.id] for record in tree)
        assert {record.id for record in answer(self.store.tree("a"))} == {"a", "aa"}
        assert [record.id for record in answer(self.store.tree("aaa"))] == ["aaa"]

    def test_a_tree_tells_of_each_run_what_its_summary_does(self) -> None:
        """However large the results below it are."""
        ends = {"root": Status.STOPPED, "long": Status.COMPLETED, "failed": Status.FAILED}
        for run_id, parent_id in {"root": None, "long": "root", "failed": "long", "live": "root"}.items():
            self.start(run_id, parent_id=parent_id, input={"text": "x" * 9000})
        self.stop("root")
        for run_id, status in ends.items():
            error = ErrorRecord(type="ValueError", message="m" * 5000, trace="t" * 5000) if run_id == "failed" else None
            self.finish(self.get(run_id), status, result="x" * 100_000, partial="y" * 5000, error=error)
        summaries = {run.id: run for run in answer(self.store.tree("root"))}
        assert summaries == {run_id: RunSummary.of(self.get(run_id)) for run_id in (*ends, "live")}

    def test_counts_say_how_many_runs_have_each_status(self) -> None:
        self.start("a")
        self.start("b", running=False)
        self.finish(self.start("c"))
        self.finish(self.start("d"))
        self.stop("a")
        counts = {status: count for status, count in answer(self.store.counts()).items() if count}
        assert counts == {"stopping": 1, "pending": 1, "completed": 2}

    # Holds

    def test_holds_are_listed_oldest_first_until_they_are_released(self) -> None:
        first = answer(self.store.place_hold(Selector(owner="ann"), intent(message="one")))
        self.advance(1)
        second = answer(self.store.place_hold(Selector(all=True), intent(message="two")))
        assert list_of(self.store.holds()) == [first, second]
        assert (second.selector, second.reason.message) == (Selector(all=True), "two")
        assert second.created_at == self.store.now()
        assert answer(self.store.release(first.id)) == first
        assert list_of(self.store.holds()) == [second]

    def test_a_hold_that_is_not_there_is_not_found(self) -> None:
        hold = answer(self.store.place_hold(Selector(owner="ann"), intent()))
        answer(self.store.release(hold.id))
        assert assert_refused(HoldNotFound, self.store.release, hold.id).hold_id == hold.id
        assert_refused(HoldNotFound, self.store.release, "nothing")

    def test_a_hold_alone_stops_nothing(self) -> None:
        before = self.start("a", owner="ann")
        answer(self.store.place_hold(Selector(owner="ann"), intent()))
        assert self.get("a") == before

    # Audit

    def test_the_audit_says_who_stopped_held_and_released_what(self) -> None:
        self.start("a", owner="ann")
        self.stop("a", Mode.KILL, "runaway")
        self.advance(1)
        hold = answer(self.store.place_hold(Selector(owner="ann"), intent(message="incident")))
        answer(self.store.release(hold.id, "bob"))
        stop, hold_entry, released = list_of(self.store.audit())
        assert [entry.action for entry in (stop, hold_entry, released)] == ["stop", "hold", "release"]
        assert [entry.actor for entry in (stop, hold_entry, released)] == ["ann", "ann", "bob"]
        assert (stop.reason, stop.target["run"], stop.target["mode"]) == ("runaway", "a", "kill")
        assert stop.result["runs"] == {"a": "accepted"}
        assert stop.at == hold_entry.at - 1 == self.store.now() - 1
        assert hold_entry.target["selector"]["owner"] == "ann"
        assert hold_entry.result["hold"] == released.result["hold"] == hold.id

    def test_the_audit_has_the_hold_of_a_bulk_stop_and_a_stop_that_waits_for_its_run(self) -> None:
        result = self.stop(Selector(owner="ann"), hold=True)
        assert result.hold is not None
        self.stop("a", if_unknown="wait")
        bulk, waiting = list_of(self.store.audit())
        assert (bulk.action, bulk.result["hold"]) == ("stop", result.hold.id)
        assert (waiting.action, waiting.target["run"], waiting.result["runs"]) == ("stop", "a", {})

    def test_the_audit_has_the_owner_of_a_run_that_was_stopped_by_its_id(self) -> None:
        """So whoever may see an entry is known without reading the record of a run, which may be purged."""
        self.start("a", owner='an"n')
        self.start("b")
        for run_id in ("a", "a", "b"):
            self.stop(run_id)
        self.stop("later", owner="bob", if_unknown="wait")
        assert [entry.result["owner"] for entry in list_of(self.store.audit())] == ['an"n', 'an"n', None, "bob"]

    def test_a_stop_that_was_refused_is_not_in_the_audit(self) -> None:
        assert_refused(RunNotFound, self.store.request_stop, StopRequest(target="a", intent=intent()))
        assert list_of(self.store.audit()) == []

    def test_the_audit_is_read_on_from_a_number(self) -> None:
        for owner in "abcde":
            answer(self.store.place_hold(Selector(owner=owner), intent(message=owner)))
        first = answer(self.store.audit(0, 2))
        rest = answer(self.store.audit(first[-1].id, 100))
        assert [entry.reason for entry in (*first, *rest)] == list("abcde")
        ids = [entry.id for entry in (*first, *rest)]
        assert ids == sorted(set(ids))
        assert list_of(self.store.audit(ids[-1])) == []

    # Purge

    def test_trees_that_ended_before_a_time_are_forgotten_with_their_events(self) -> None:
        self.finish(self.start("old"))
        self.finish(self.start("old child", parent_id="old", running=False))
        self.advance(10)
        between = self.store.now()
        self.advance(10)
        self.finish(self.start("young"))
        self.start("alive")
        assert answer(self.store.purge(between)) == 2
        for run_id in ("old", "old child"):
            assert_refused(RunNotFound, self.store.get, run_id)
            assert_refused(RunNotFound, self.store.read, run_id)
        assert self.ids_of(Filter()) == ["alive", "young"]
        assert answer(self.store.purge(between)) == 0
        assert self.start("old").status is Status.RUNNING
        assert [event.seq for event in self.log("old")] == [1]

    def test_a_tree_of_which_anything_lives_is_kept_whole(self) -> None:
        record = self.start("a")
        child = self.start("child", parent_id="a")
        self.finish(record)
        self.advance(100)
        assert answer(self.store.purge(self.store.now())) == 0
        self.finish(child)
        assert answer(self.store.purge(self.store.now())) == 0  # the child ended now
        self.advance(1)
        assert answer(self.store.purge(self.store.now())) == 2

    def test_what_is_left_by_a_limited_purge_is_forgotten_by_the_next(self) -> None:
        for number in range(5):
            self.finish(self.start(f"run {number}"))
        self.advance(1)
        counts = [answer(self.store.purge(self.store.now(), 2)) for _ in range(4)]
        assert counts == [2, 2, 1, 0]

    def test_the_key_of_a_stop_whose_run_is_forgotten_finds_no_run(self) -> None:
        self.finish(self.start("a", owner="ann"))
        self.stop("a", idempotency_key="one")
        self.advance(1)
        answer(self.store.purge(self.store.now()))
        assert_refused(
            RunNotFound, self.store.request_stop, StopRequest(target="a", intent=intent(), idempotency_key="one")
        )

    def test_the_key_of_a_bulk_stop_whose_runs_are_forgotten_stops_nothing_new(self) -> None:
        record = self.start("a", owner="ann")
        self.stop(Selector(owner="ann"), idempotency_key="k")
        self.finish(record, Status.STOPPED)
        self.advance(1)
        answer(self.store.purge(self.store.now() - 0.5))
        self.start("b", owner="ann")
        assert self.stop(Selector(owner="ann"), idempotency_key="k").answers == ()
        assert self.get("b").stop is None

"""Tests of runs from their start to their end: what a start finds, and which report of the end counts."""

from __future__ import annotations

from dataclasses import replace

from stoppable._core.stop import Answer, Receipt, ReceiptEntry
from stoppable._core.values import Fate, Limits, Mode, Policy, Reason, ReasonKind, Rung, Status
from stoppable.errors import Fenced, InvalidArgument, RunConflict, RunHeld, RunNotFound
from stoppable.records import Draft, ErrorRecord, EventType, OutcomeRecord, RunRecord, Selector, replace_fields
from stoppable.stores.base import TOMBSTONE_SECONDS
from stoppable.testing.store_contract.harness import (
    StoreHarness,
    answer,
    assert_refused,
    intent,
    is_born_stopped,
    is_dense,
    progress,
    receipt,
    status,
    types_of,
)


class StartContract(StoreHarness):
    """``register``."""

    def test_a_new_run_is_kept_as_it_was_given(self) -> None:
        self.worker()
        sent = RunRecord(
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
        start = answer(self.store.register(sent, "r"))
        record = start.record
        assert start.created
        assert (record.status, record.epoch, record.root_id, record.last_event) == (Status.PENDING, 1, "a", 0)
        assert (record.name, record.owner, record.labels, record.worker) == ("writer", "ann", {"team": "x"}, "w")
        assert (record.isolation, record.on_disconnect) == ("process", "stop")
        assert (record.limits, record.policy) == (sent.limits, sent.policy)
        assert (record.input, record.omitted, record.metadata) == (sent.input, sent.omitted, sent.metadata)
        assert record.created_at == self.store.now()
        assert self.get("a") == record

    def test_an_input_of_any_length_comes_back_until_it_is_purged(self) -> None:
        self.worker()
        inputs = [{"text": "x" * length} for length in (0, 1000, 2030, 2048, 3000, 100_000)]
        for number, input_ in enumerate(inputs):
            record = self.register(f"run {number}", input=input_).record
            assert record.input == self.get(record.id).input == input_
            self.stop(record.id)
            assert self.finish(self.get(record.id), Status.STOPPED).input == input_
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
                    replace_fields(plain, owner=text),
                    replace_fields(plain, name=text),
                    replace_fields(plain, labels={text: text}),
                    replace_fields(plain, input={text: text}),
                    replace_fields(plain, id=text, root_id=text),
                )
            ):
                sent = (
                    run
                    if run.id == text
                    else replace_fields(run, id=f"{plain.id} {number}", root_id=f"{plain.id} {number}")
                )
                try:
                    answer(self.store.register(sent, "r"))
                except InvalidArgument:
                    continue
                stored_record = self.get(sent.id)
                assert replace_fields(stored_record, created_at=0.0) == sent
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
        error = assert_refused(RunConflict, self.store.register, RunRecord(id="a", name="other", worker="w"), "another")
        assert error.run_id == "a"
        assert self.get("a") == before

    def test_the_same_request_of_another_owner_is_a_conflict(self) -> None:
        self.start("a", owner="ann")
        assert_refused(RunConflict, self.store.register, RunRecord(id="a", name="agent", owner="bob", worker="w"), "r")

    def test_a_child_has_the_root_of_its_parent(self) -> None:
        self.start("root")
        self.start("child", parent_id="root")
        leaf = self.start("leaf", parent_id="child")
        assert (leaf.parent_id, leaf.root_id) == ("child", "root")

    # A lease

    def test_a_start_needs_a_lease(self) -> None:
        assert_refused(Fenced, self.store.register, RunRecord(id="a", name="agent", worker="nobody"), "r")
        assert_refused(RunNotFound, self.store.get, "a")

    def test_a_worker_that_was_reaped_starts_nothing(self) -> None:
        self.worker(ttl=10)
        self.advance(11)
        self.reap()
        assert_refused(Fenced, self.store.register, RunRecord(id="a", name="agent", worker="w"), "r")

    def test_a_worker_that_was_closed_starts_nothing(self) -> None:
        self.worker()
        answer(self.store.close_worker("w"))
        assert_refused(Fenced, self.store.register, RunRecord(id="a", name="agent", worker="w"), "r")

    # Holds

    def test_a_hold_refuses_the_starts_that_it_matches_until_it_is_released(self) -> None:
        self.worker()
        hold = answer(self.store.place_hold(Selector(owner="ann"), intent(message="audit")))
        record = RunRecord(id="a", name="agent", owner="ann", worker="w")
        error = assert_refused(RunHeld, self.store.register, record, "r")
        assert (error.hold_id, error.reason) == (hold.id, "audit")
        assert_refused(RunNotFound, self.store.get, "a")
        assert self.register("b", owner="bob").created
        answer(self.store.release(hold.id))
        assert self.register("a", owner="ann").created

    def test_a_hold_matches_only_what_everything_given_matches(self) -> None:
        self.worker()
        answer(self.store.place_hold(Selector(agent="mailer", labels={"team": "x", "env": "live"}), intent()))
        assert self.register("a", name="writer", labels={"team": "x", "env": "live"}).created
        assert self.register("b", name="mailer", labels={"team": "x"}).created
        labels = {"team": "x", "env": "live", "more": "y"}
        assert_refused(RunHeld, self.store.register, RunRecord(id="c", name="mailer", labels=labels, worker="w"), "r")

    def test_a_hold_on_everything_refuses_everything(self) -> None:
        self.worker()
        answer(self.store.place_hold(Selector(all=True), intent()))
        assert_refused(RunHeld, self.store.register, RunRecord(id="a", name="agent", worker="w"), "r")

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
        child = self.register("child", parent_id="a").record
        assert child.epoch > 1
        assert types_of(self.log("child")) == ["status", "done"]
        assert "child" not in self.intents()
        assert_refused(Fenced, self.store.append, "child", 1, [progress()])
        assert self.finish(child, Status.COMPLETED).status is Status.STOPPED
        assert self.get("a").epoch == parent.epoch

    # A stop that came first

    def test_a_stop_that_came_before_its_run_stops_it_at_birth(self) -> None:
        self.worker()
        assert self.stop("a", Mode.IMMEDIATE, "changed my mind", if_unknown="wait").answers == ()
        assert is_born_stopped(self.register("a").record, intent(Mode.IMMEDIATE, "changed my mind"))

    def test_a_stop_that_came_first_waits_only_so_long(self) -> None:
        self.worker(ttl=1000)
        self.stop("a", if_unknown="wait")
        self.stop("b", if_unknown="wait")
        self.advance(TOMBSTONE_SECONDS - 1)
        assert self.register("a").record.status is Status.STOPPED
        self.advance(2)
        assert self.register("b").record.status is Status.PENDING

    def test_a_dry_run_of_a_stop_that_comes_first_leaves_nothing(self) -> None:
        self.worker()
        self.stop("a", if_unknown="wait", dry_run=True)
        assert self.register("a").record.status is Status.PENDING

    def test_of_two_stops_that_came_first_the_mode_only_rises_and_the_first_reason_stays(self) -> None:
        self.worker()
        self.stop("a", Mode.IMMEDIATE, "first", if_unknown="wait")
        self.stop("a", Mode.COOPERATIVE, "second", if_unknown="wait")
        assert is_born_stopped(self.register("a").record, intent(Mode.IMMEDIATE, "first"))
        self.stop("b", Mode.COOPERATIVE, "first", if_unknown="wait")
        self.stop("b", Mode.KILL, "second", if_unknown="wait")
        assert is_born_stopped(self.register("b").record, intent(Mode.KILL, "first"))

    def test_a_stop_that_came_first_is_for_the_runs_of_its_owner(self) -> None:
        self.worker()
        self.stop("a", owner="bob", if_unknown="wait")
        assert self.register("a", owner="ann").record.status is Status.PENDING
        self.stop("b", owner="ann", if_unknown="wait")
        assert self.register("b", owner="ann").record.status is Status.STOPPED

    def test_a_stop_of_nobody_that_came_first_is_for_the_run_of_whomever(self) -> None:
        self.worker()
        self.stop("a", if_unknown="wait")
        assert self.register("a", owner="ann").record.status is Status.STOPPED

    def test_nobody_takes_away_a_stop_of_another_owner_that_came_first(self) -> None:
        self.worker()
        self.stop("a", owner="ann", if_unknown="wait")
        self.stop("a", owner="bob", if_unknown="wait")
        assert self.register("a", owner="ann").record.status is Status.STOPPED


DONE = OutcomeRecord(status=Status.COMPLETED)


class EndContract(StoreHarness):
    """``acknowledge`` and ``finish``."""

    # Acknowledge

    def test_an_acknowledgement_keeps_the_mode_and_the_receipt_so_far(self) -> None:
        record = self.start("a")
        self.stop("a")
        sent_receipt = receipt(record, "llm:ask", "tool:mail")
        answer(self.store.acknowledge("a", record.epoch, Mode.GRACEFUL, sent_receipt))
        stored_record = self.get("a")
        # A record and its receipt tell the same times.
        sent_receipt = replace(sent_receipt, requested_at=stored_record.stop_requested_at)
        assert (stored_record.acknowledged, stored_record.receipt, stored_record.status) == (
            Mode.GRACEFUL,
            sent_receipt,
            Status.STOPPING,
        )

    def test_what_was_acknowledged_never_falls(self) -> None:
        record = self.start("a")
        self.stop("a", Mode.IMMEDIATE)
        self.acknowledge(record, Mode.IMMEDIATE)
        self.acknowledge(record, Mode.COOPERATIVE)
        assert self.get("a").acknowledged is Mode.IMMEDIATE
        assert self.intents() == {}

    def test_an_acknowledgement_with_another_epoch_is_fenced(self) -> None:
        record = self.start("a")
        self.stop("a")
        before = self.get("a")
        for epoch in (record.epoch - 1, record.epoch + 1):
            assert_refused(Fenced, self.store.acknowledge, "a", epoch, Mode.GRACEFUL, receipt(record))
        assert self.get("a") == before

    def test_an_acknowledgement_of_a_run_that_is_over_is_fenced(self) -> None:
        record = self.start("a")
        over = self.finish(record)
        for epoch in (record.epoch, over.epoch):
            assert_refused(Fenced, self.store.acknowledge, "a", epoch, Mode.KILL, receipt(record))
        assert self.get("a") == over

    def test_a_run_that_nobody_knows_is_not_found_by_those_who_report_about_it(self) -> None:
        sent_receipt = Receipt(run_id="a", answer=Answer.ACCEPTED, status=Status.STOPPING)
        assert_refused(RunNotFound, self.store.acknowledge, "a", 1, Mode.GRACEFUL, sent_receipt)
        assert_refused(RunNotFound, self.store.finish, "a", 1, DONE, None)

    # Finish

    def test_an_end_is_kept_whole(self) -> None:
        record = self.start("a")
        self.stop("a")
        self.advance(4)
        outcome = OutcomeRecord(
            status=Status.STOPPED,
            reason=Reason(message="enough", actor="ann", at=5.0),
            rung=Rung.CANCEL,
            clean=False,
            result={"so": ["far", 1, None, 2.5, "ü \U0001f6d1"]},
            partial="half a sent",
            error=ErrorRecord(type="ValueError", message="no", trace="line 1\nline 2"),
            omitted={"partial": "too long"},
        )
        sent_receipt = Receipt(
            run_id="a",
            answer=Answer.ACCEPTED,
            status=Status.STOPPED,
            mode=Mode.GRACEFUL,
            reason=outcome.reason,
            in_flight=("llm:ask",),
            entries=(ReceiptEntry(run_id="a", kind="llm", name="ask", fate=Fate.CANCELLED),),
            entered_after=("tool:save",),
            ended_at=4.0,
        )
        stored_record = answer(self.store.finish("a", record.epoch, outcome, sent_receipt))
        sent_receipt = replace(
            sent_receipt, requested_at=stored_record.stop_requested_at, ended_at=stored_record.ended_at
        )
        assert (stored_record.status, stored_record.outcome, stored_record.receipt) == (
            Status.STOPPED,
            outcome,
            sent_receipt,
        )
        assert stored_record.ended_at == self.store.now()
        assert self.get("a") == stored_record

    def test_an_end_bumps_the_epoch(self) -> None:
        """G15."""
        record = self.start("a")
        over = self.finish(record)
        assert over.epoch > record.epoch
        assert_refused(Fenced, self.store.append, "a", record.epoch, [progress()])

    def test_an_end_adds_the_last_events_then_its_status_then_done(self) -> None:
        record = self.start("a", running=False)
        last = [status(Status.RUNNING), progress(step=1)]
        over = answer(self.store.finish("a", record.epoch, DONE, None, last))
        log = self.log("a")
        assert types_of(log) == ["status", "progress", "status", "done"]
        assert [event.data.get("status") for event in log] == ["running", None, "completed", "completed"]
        assert (over.last_event, over.started_at) == (4, self.store.now())
        assert is_dense(log)

    def test_every_terminal_status_is_an_end(self) -> None:
        for end in (Status.COMPLETED, Status.FAILED, Status.STOPPED, Status.LOST):
            assert self.finish(self.start(end.value), end).status is end

    def test_an_end_that_is_none_is_refused_and_changes_nothing(self) -> None:
        record = self.start("a")
        log = self.log("a")
        for going_on in (Status.PENDING, Status.RUNNING, Status.STOPPING):
            outcome = OutcomeRecord(status=going_on)
            assert_refused(InvalidArgument, self.store.finish, "a", record.epoch, outcome, None, [progress()])
        assert (self.get("a"), self.log("a")) == (record, log)

    def test_the_second_end_changes_nothing_and_becomes_a_late_event(self) -> None:
        """G2: the second report returns what the first one wrote."""
        record = self.start("a")
        first = self.finish(record, Status.COMPLETED, result=1)
        last = [progress(step=9)]
        outcome = OutcomeRecord(status=Status.STOPPED, result=2)
        second = answer(self.store.finish("a", record.epoch, outcome, receipt(record), last))
        assert (second.status, second.outcome, second.receipt) == (first.status, first.outcome, first.receipt)
        assert (second.epoch, second.ended_at) == (first.epoch, first.ended_at)
        log = self.log("a")
        assert types_of(log) == ["status", "status", "done", "late"]
        assert log[-1].data["status"] == "stopped"
        assert is_dense(log)

    def test_an_end_with_the_epoch_of_a_run_that_is_over_changes_nothing(self) -> None:
        first = self.finish(self.start("a"))
        assert self.finish(first, Status.FAILED).outcome == first.outcome

    def test_an_end_with_an_epoch_that_is_not_the_runs_changes_nothing(self) -> None:
        record = self.start("a")
        for epoch in (record.epoch - 1, record.epoch + 1):
            assert answer(self.store.finish("a", epoch, DONE, None)).status is Status.RUNNING
        assert self.finish(record).status is Status.COMPLETED

    def test_an_end_is_of_one_run_alone(self) -> None:
        """Its children, its parent and its siblings go on until their workers end them."""
        self.start("root")
        record = self.start("child", parent_id="root")
        self.start("leaf", parent_id="child")
        self.start("sibling", parent_id="root")
        others = [self.get(run_id) for run_id in ("root", "leaf", "sibling")]
        self.finish(record)
        assert [self.get(other.id) for other in others] == others

    def test_the_stop_of_a_run_that_ended_first_has_a_receipt_that_says_too_late(self) -> None:
        """The worker did not know of the stop and sent no receipt; the store makes one."""
        record = self.start("a")
        self.stop("a", message="enough")
        over = self.finish(record)
        assert over.receipt is not None
        assert (over.receipt.too_late, over.receipt.status) == (True, Status.COMPLETED)
        assert over.receipt.reason == intent().reason

    def test_an_end_without_a_receipt_leaves_the_one_that_was_acknowledged(self) -> None:
        record = self.start("a")
        self.stop("a")
        answer(self.store.acknowledge("a", record.epoch, Mode.GRACEFUL, receipt(record, "tool:mail")))
        over = self.finish(record, Status.STOPPED)
        assert over.receipt is not None
        assert (over.receipt.in_flight, over.receipt.final) == (("tool:mail",), True)

    def test_a_run_that_nobody_stopped_needs_no_receipt(self) -> None:
        assert self.finish(self.start("a")).receipt is None

"""Tests of acknowledgements and ends: one terminal status, which later reports do not change."""

from __future__ import annotations

from dataclasses import replace

from stoppable._core.reason import Reason
from stoppable._core.state import Fate, Mode, Rung, Status
from stoppable._core.stop import Answer, Node, Receipt
from stoppable.errors import Fenced, InvalidArgument, RunNotFound
from stoppable.records import ErrorRecord, OutcomeRecord
from stoppable.testing.store_contract.harness import (
    StoreHarness,
    answer,
    intent,
    is_dense,
    progress,
    receipt,
    refused,
    status,
    types_of,
)

DONE = OutcomeRecord(status=Status.COMPLETED)


class Finishing(StoreHarness):
    """``acknowledge`` and ``finish``."""

    # Acknowledge

    def test_an_acknowledgement_keeps_the_mode_and_the_receipt_so_far(self) -> None:
        record = self.start("a")
        self.stop("a")
        said = receipt(record, "llm:ask", "tool:mail")
        answer(self.store.acknowledge("a", record.epoch, Mode.GRACEFUL, said))
        kept = self.get("a")
        said = replace(said, requested_at=kept.stop_requested_at)  # a record and its receipt tell the same times
        assert (kept.acknowledged, kept.receipt, kept.status) == (Mode.GRACEFUL, said, Status.STOPPING)

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
            refused(Fenced, self.store.acknowledge, "a", epoch, Mode.GRACEFUL, receipt(record))
        assert self.get("a") == before

    def test_an_acknowledgement_of_a_run_that_is_over_is_fenced(self) -> None:
        record = self.start("a")
        over = self.finish(record)
        for epoch in (record.epoch, over.epoch):
            refused(Fenced, self.store.acknowledge, "a", epoch, Mode.KILL, receipt(record))
        assert self.get("a") == over

    def test_a_run_that_nobody_knows_is_not_found_by_those_who_report_about_it(self) -> None:
        said = Receipt(run_id="a", answer=Answer.ACCEPTED, status=Status.STOPPING)
        refused(RunNotFound, self.store.acknowledge, "a", 1, Mode.GRACEFUL, said)
        refused(RunNotFound, self.store.finish, "a", 1, DONE, None)

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
        said = Receipt(
            run_id="a",
            answer=Answer.ACCEPTED,
            status=Status.STOPPED,
            mode=Mode.GRACEFUL,
            reason=outcome.reason,
            in_flight=("llm:ask",),
            nodes=(Node(run_id="a", kind="llm", name="ask", fate=Fate.CANCELLED),),
            entered_after=("tool:save",),
            ended_at=4.0,
        )
        kept = answer(self.store.finish("a", record.epoch, outcome, said))
        said = replace(said, requested_at=kept.stop_requested_at, ended_at=kept.ended_at)
        assert (kept.status, kept.outcome, kept.receipt) == (Status.STOPPED, outcome, said)
        assert kept.ended_at == self.store.now()
        assert self.get("a") == kept

    def test_an_end_bumps_the_epoch(self) -> None:
        """G15."""
        record = self.start("a")
        over = self.finish(record)
        assert over.epoch > record.epoch
        refused(Fenced, self.store.append, "a", record.epoch, [progress()])

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
            refused(InvalidArgument, self.store.finish, "a", record.epoch, outcome, None, [progress()])
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

"""The specification for kinds of participants, as tests: what a stop does to the code that executes a run.

``tests/spec`` runs these functions with the kinds that stoppable has, ``ParticipantSuite`` with a kind that you write.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import stoppable
from stoppable.testing.scripts import (
    Check,
    Child,
    Effect,
    Fail,
    Finally,
    ParticipantContract,
    Probe,
    Rest,
    Return,
    ReturnIfStopping,
    SetPartial,
    Shield,
    Swallow,
)

Claim: TypeAlias = Callable[[ParticipantContract, Probe], Awaitable[None]]

_SECONDS = 60.0


class ParticipantSuite:
    """Tests the specification with one kind of participant; subclass it, and pytest finds the tests.

    No plugin is needed: each test has its own event loop. A test that waits for something that never happens fails
    after a minute.
    """

    @abstractmethod
    def make_kind(self) -> ParticipantContract:
        """Return the kind of participant to test."""

    def perform(self, claim: Claim) -> None:
        """Test one claim with a new participant, in an event loop and a folder of its own."""
        kind = self.make_kind()
        with tempfile.TemporaryDirectory() as folder:
            probe = kind.probe(Path(folder))
            asyncio.run(_perform_in_time(claim, kind, probe))


def _receipt(handle: stoppable.RunHandle[Any]) -> stoppable.Receipt:
    receipt = handle.run.receipt
    assert receipt is not None, "it was stopped"
    return receipt


def _in_order(*times: float | None) -> bool:
    known = [time for time in times if time is not None]
    return len(known) == len(times) and known == sorted(known)


async def _perform_in_time(claim: Claim, kind: ParticipantContract, probe: Probe) -> None:
    try:
        async with asyncio.timeout(_SECONDS):
            await claim(kind, probe)
    finally:
        probe.release()  # let everything go on that still waits


# G1: after a process acknowledged, no unshielded boundary is entered there; every one still open is in the receipt.


async def test_a_boundary_in_flight_finishes_and_the_next_is_not_entered(
    kind: ParticipantContract, probe: Probe
) -> None:
    handle = await kind.start([Effect("first", "llm"), Effect("second")], probe)
    await probe.seen("enter first")
    receipt = await handle.stop()
    probe.release()
    await handle.outcome()
    assert receipt.in_flight == (kind.label("llm", "first"),)
    assert probe.notes == ["enter first", "leave first"]


async def test_a_swallowed_stop_buys_no_further_effect(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Swallow([Effect("effect")], times=50)], probe)
    await probe.seen("enter effect")
    await handle.stop()
    probe.release()
    await handle.outcome()
    assert probe.entered() == ["effect"]
    assert probe.notes.count("swallowed AgentStopped") == 49


async def test_a_shielded_boundary_is_entered_after_the_stop_and_the_receipt_says_so(
    kind: ParticipantContract, probe: Probe
) -> None:
    handle = await kind.start([Effect("work"), Effect("never")], probe)
    await probe.seen("enter work")
    other = await kind.start([Shield(5, [Effect("hold"), Effect("save")])], probe)
    await probe.seen("enter hold")
    await handle.stop()
    await other.stop()
    probe.release()
    await handle.outcome()
    await other.outcome()
    assert "never" not in probe.entered()
    assert "save" in probe.entered()
    assert _receipt(other).entered_after == (kind.label("tool", "save"),)


# G2: one terminal status, written by compare-and-set, immutable.


async def test_a_stop_after_the_end_changes_nothing(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Return("value")], probe)
    outcome = await handle.outcome()
    receipt = await handle.stop("kill")
    assert receipt.answer == "already_finished"
    assert (await handle.outcome()) is outcome
    assert outcome.status == "completed"
    assert not handle.run.token.stopped


# G3: a stopped token stays stopped, with its first reason, for ever, on every thread, after the run ended.


async def test_the_first_reason_stays_and_later_ones_are_appended(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Effect("work")], probe)
    await probe.seen("enter work")
    await handle.stop("cooperative", "first", "ann")
    await handle.stop("cooperative", "second", "bob")
    await handle.stop("immediate", "third")
    probe.release()
    outcome = await handle.outcome()
    token = handle.run.token
    assert outcome.reason == token.reason
    assert token.reason is not None
    assert (token.reason.message, token.reason.actor) == ("first", "ann")
    assert [reason.message for reason in token.reasons] == ["first", "second", "third"]


async def test_it_is_seen_on_other_threads_and_after_the_end(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Effect("work"), Effect("never")], probe)
    await probe.seen("enter work")
    token = handle.run.token
    assert not token.stopped
    await handle.stop()
    probe.release()
    await handle.outcome()
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(token.stopped))
    thread.start()
    thread.join(5)
    assert seen == [True]
    assert token.stopped
    assert "stopped" in repr(token)


async def test_trying_again_is_a_new_run_with_a_fresh_token(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Effect("work"), Effect("never")], probe)
    await probe.seen("enter work")
    await handle.stop()
    probe.release()
    await handle.outcome()
    again = await kind.start([Effect("again")], probe)
    assert (await again.outcome()).status == "completed"
    assert handle.run.token.stopped
    assert not again.run.token.stopped


# G4: the target and its descendants, children created later included; never the parent, never siblings.


async def test_a_stop_of_the_root_ends_the_whole_chain(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Child([Child([Effect("deep"), Effect("never")])])], probe)
    await probe.seen("enter deep")
    await handle.stop()
    probe.release()
    assert (await handle.outcome()).status == "stopped"
    assert probe.entered() == ["deep"]
    assert [node.fate for node in _receipt(handle).entries if node.kind == "run"] == ["stopped"] * 3


async def test_a_stop_of_one_child_leaves_parent_and_siblings_alone(kind: ParticipantContract, probe: Probe) -> None:
    statuses: list[str] = []
    async with stoppable.open_run("parent") as parent:
        children = [await kind.start([Effect(f"work {n}"), Effect(f"more {n}"), Return(n)], probe) for n in range(3)]
        for n in range(3):
            await probe.seen(f"enter work {n}")
        await children[1].stop()
        probe.release()
        statuses = [(await child.outcome()).status for child in children]
    assert statuses == ["completed", "stopped", "completed"]
    assert parent.status == "completed"
    assert "more 1" not in probe.entered()


# G5: every unshielded check or boundary raises while stopped.


async def test_every_check_and_boundary_raises_again(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Rest(), Swallow([Check()], 3), Swallow([Effect("never")], 3)], probe)
    await probe.seen("rest rest")
    await handle.stop("cooperative")
    probe.release()
    outcome = await handle.outcome()
    assert probe.notes[2:] == ["swallowed AgentStopped"] * 6
    assert outcome.status == "stopped"


async def test_an_agent_that_asks_and_returns_is_stopped_with_its_value(
    kind: ParticipantContract, probe: Probe
) -> None:
    handle = await kind.start([Rest(), ReturnIfStopping("so far")], probe)
    await probe.seen("rest rest")
    await handle.stop()
    probe.release()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result, outcome.clean) == ("stopped", "so far", True)


# G7: clean means every finally and __aexit__ on the path ran to its end.


async def test_a_polite_stop_runs_the_clean_up_and_is_clean(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Finally([Effect("work"), Effect("never")], [Rest("clean-up")])], probe)
    await probe.seen("enter work")
    await handle.stop()
    probe.release("work")
    await probe.seen("rest clean-up")
    assert handle.status == "stopping"
    probe.release()
    outcome = await handle.outcome()
    assert probe.notes[-1] == "rested clean-up"
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "signal", True)


async def test_a_clean_up_may_use_boundaries_in_a_shield(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Finally([Effect("work"), Effect("never")], [Shield(5, [Effect("save")])])], probe)
    await probe.seen("enter work")
    await handle.stop()
    probe.release()
    await handle.outcome()
    assert probe.entered() == ["work", "save"]


# G8: never completed after a delivery, never failed because of the stop, never stopped before all is known dead.


async def test_a_run_that_ends_before_anything_was_delivered_is_completed_and_the_stop_too_late(
    kind: ParticipantContract, probe: Probe
) -> None:
    handle = await kind.start([Effect("last"), Return("value")], probe)
    await probe.seen("enter last")
    receipt = await handle.stop()
    assert (receipt.answer, receipt.too_late) == ("accepted", False)
    probe.release()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result) == ("completed", "value")
    assert _receipt(handle).too_late
    assert await handle.result() == "value"


async def test_an_agent_that_swallows_the_stop_and_returns_is_stopped_with_its_value(
    kind: ParticipantContract, probe: Probe
) -> None:
    handle = await kind.start([Rest(), Swallow([Check()], 1), Return("pretends all is well")], probe)
    await probe.seen("rest rest")
    await handle.stop()
    probe.release()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result) == ("stopped", "pretends all is well")


async def test_an_error_while_stopping_is_attached_and_not_clean(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Finally([Effect("work"), Effect("never")], [Fail("in clean-up")])], probe)
    await probe.seen("enter work")
    await handle.stop()
    probe.release()
    outcome = await handle.outcome()
    assert (outcome.status, str(outcome.error), outcome.clean) == ("stopped", "in clean-up", False)


async def test_should_stop_answering_true_is_a_delivery(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Rest(), ReturnIfStopping("asked"), Return("did not ask")], probe)
    await probe.seen("rest rest")
    await handle.stop()
    probe.release()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result) == ("stopped", "asked")
    receipt = _receipt(handle)
    assert _in_order(receipt.requested_at, receipt.acknowledged_at, receipt.delivered_at, receipt.ended_at)


async def test_looking_at_the_token_is_no_delivery(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Rest(), Return("value")], probe)
    await probe.seen("rest rest")
    await handle.stop()
    assert handle.run.token.stopped
    probe.release()
    assert (await handle.outcome()).status == "completed"


# G10: a stop never fails because of a race; the same request returns the same receipt.


async def test_the_same_stop_again_returns_the_same_receipt(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Effect("work")], probe)
    await probe.seen("enter work")
    first = await handle.stop("graceful", "why")
    second = await handle.stop("graceful", "other words")
    assert second == dataclasses.replace(first, answer=stoppable.Answer.ALREADY_STOPPING)
    probe.release()
    await handle.outcome()


async def test_twenty_threads_that_stop_at_once_agree(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([Effect("work")], probe)
    await probe.seen("enter work")
    go = threading.Barrier(20)
    receipts: list[stoppable.Receipt] = []

    def stop() -> None:
        go.wait(5)
        receipts.append(handle.run.stop("cooperative", threading.current_thread().name))

    threads = [threading.Thread(target=stop) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert sorted(receipt.answer for receipt in receipts) == ["accepted"] + ["already_stopping"] * 19
    assert len({receipt.reason for receipt in receipts}) == 1
    assert {receipt.in_flight for receipt in receipts} == {(kind.label("tool", "work"),)}
    probe.release()
    await handle.outcome()


# G11: boundaries raise on entry, never on exit; partials recorded before the end are in the outcome.


async def test_partials_are_kept_however_the_run_ends(kind: ParticipantContract, probe: Probe) -> None:
    probe.release()
    completed = await kind.start([SetPartial("half"), Return("whole")], probe)
    failed = await kind.start([SetPartial("half"), Fail()], probe)
    assert (await completed.outcome())[4:6] == ("whole", "half")
    assert (await failed.outcome()).partial == "half"


async def test_a_returned_value_does_not_overwrite_the_partial(kind: ParticipantContract, probe: Probe) -> None:
    handle = await kind.start([SetPartial("so far"), Effect("work"), Return("value")], probe)
    await probe.seen("enter work")
    await handle.stop()
    probe.release()
    outcome = await handle.outcome()
    assert (outcome.result, outcome.partial) == ("value", "so far")


def _method(claim: Claim) -> Callable[[ParticipantSuite], None]:
    @functools.wraps(claim)
    def test(self: ParticipantSuite) -> None:
        self.perform(claim)

    del test.__wrapped__  # pytest would ask for the fixtures of the claim
    return test


def _claims() -> list[tuple[str, Any]]:
    return [(name, value) for name, value in globals().items() if name.startswith("test_")]


for _name, _claim in _claims():
    setattr(ParticipantSuite, _name, _method(_claim))

"""G6: modes only rise, time only shrinks; a terminal status comes within the policy's total."""

import asyncio
import threading

import pytest
from tests.waiting import wait_until

import stoppable
from stoppable import Policy
from stoppable.testing import Groups
from stoppable.testing.scripts import Effect, Stubborn


@pytest.mark.parametrize(
    ("mode", "climbed"),
    [
        ("cooperative", []),
        ("graceful", [("interrupt", 10), ("cancel", 11), ("kill", 16), ("lost", 18)]),
        ("immediate", [("interrupt", 0), ("cancel", 0), ("kill", 5), ("lost", 7)]),
        ("kill", [("interrupt", 0), ("cancel", 0), ("kill", 0), ("lost", 2)]),
    ],
)
def test_the_default_ladder_is_the_one_of_the_contract(mode, climbed):
    assert list(Policy().schedule(stoppable.Mode(mode))) == climbed


async def test_what_cannot_be_ended_is_lost_within_the_total(kind, probe, clock):
    """A body that swallows every force and never comes to another boundary."""
    handle = await kind.start([Stubborn("on")], probe)
    await probe.seen("stubborn on")
    await handle.stop()
    for seconds, rung in ((10, "interrupt"), (1, "cancel"), (5, "kill")):
        clock.advance(seconds)
        if rung == kind.strongest:
            outcome = await handle.outcome()
            assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", rung, False)
            return
        await _ticks()
        assert handle.status == "stopping"
        assert handle.run._rung == rung
    clock.advance(2)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("lost", "lost", False)
    abandoned = [node for node in handle.run.receipt.nodes if node.kind == "participant"]
    assert {node.fate for node in abandoned} == {"abandoned"}
    assert kind.described in abandoned[0].name
    with pytest.raises(stoppable.RunLost):
        await handle.result()


async def _ticks():
    for _ in range(10):
        await asyncio.sleep(0.001)


async def test_a_higher_mode_escalates_and_a_lower_one_changes_nothing(kind, probe, clock):
    handle = await kind.start([Effect("work"), Effect("never")], probe)
    await probe.seen("enter work")
    answers = [(await handle.stop(mode)).answer for mode in ("cooperative", "graceful", "cooperative", "graceful")]
    assert answers == ["accepted", "escalated", "already_stopping", "already_stopping"]
    assert handle.run.receipt.mode == "graceful"
    probe.release()
    await handle.outcome()


async def test_a_second_stop_never_prolongs_the_first(kind, probe, clock):
    handle = await kind.start([Effect("work")], probe)
    await probe.seen("enter work")
    await handle.stop("graceful", grace=5)
    clock.advance(4)
    await handle.stop("graceful", grace=100)
    clock.advance(1)
    assert handle.run._rung == "interrupt"
    probe.release()
    await handle.outcome()


async def test_a_blocked_event_loop_holds_up_neither_the_answer_nor_the_ladder():
    """An async agent blocks its loop until a stop from another thread has climbed to CANCEL."""
    blocked, go_on = threading.Event(), threading.Event()
    seen = []

    async def blocking():
        with stoppable.boundary("tool", "sleep"):
            blocked.set()
            seen.append(go_on.wait(30))
        await asyncio.sleep(60)

    def press(run):
        blocked.wait(30)
        seen.append(run.stop("graceful", grace=0.1).answer)
        wait_until(lambda: run._rung == "cancel")
        seen.append(run.status)
        go_on.set()

    handle = await stoppable.spawn(blocking)
    thread = threading.Thread(target=press, args=(handle.run,))
    thread.start()
    outcome = await handle.outcome()
    thread.join(5)
    assert seen == ["accepted", "stopping", True]
    assert (outcome.status, outcome.rung) == ("stopped", "cancel")


async def test_cancel_is_term_to_a_process_group(clock, tmp_path):
    kind = Groups()
    probe = kind.probe(tmp_path)
    handle = await kind.start([Effect("work"), Effect("never")], probe)
    await probe.seen("enter work")
    await handle.stop()
    clock.advance(10.9)
    await _ticks()
    assert handle.status == "stopping"
    clock.advance(0.1)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "cancel", True)
    assert {node.name: node.fate for node in handle.run.receipt.nodes if node.kind == "spawn"} == {"work": "cancelled"}
    assert probe.notes == ["enter work"]

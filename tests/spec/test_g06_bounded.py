"""G6: modes only rise, time only shrinks; a terminal status comes within the policy's total."""

import asyncio
import math
import threading

import pytest
from tests.participant_kinds import Groups
from tests.waiting import until as wait
from tests.waiting import wait_until

import stoppable
from stoppable import Policy
from stoppable.testing.scripts import Check, Effect, Stubborn


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
    handle = await kind.start([Check(), Stubborn("on")], probe)
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
        assert handle.run.rung == rung
    clock.advance(2)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("lost", "lost", False)
    abandoned = [node for node in handle.run.receipt.entries if node.kind == "participant"]
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
    assert handle.run.rung == "interrupt"
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
        wait_until(lambda: run.rung == "cancel")
        seen.append(run.status)
        go_on.set()

    handle = await stoppable.spawn(blocking)
    thread = threading.Thread(target=press, args=(handle.run,))
    thread.start()
    outcome = await handle.outcome()
    thread.join(60)
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
    assert {node.name: node.fate for node in handle.run.receipt.entries if node.kind == "spawn"} == {
        "work": "cancelled"
    }
    assert probe.notes == ["enter work"]


async def test_a_run_that_never_looked_is_cancelled_after_its_blind_grace(clock):
    """It cannot obey, so that a full grace would be waited in vain; the receipt says so."""
    handle = await stoppable.spawn(asyncio.sleep, 60)
    await wait(lambda: handle.status == "running")
    receipt = await handle.stop()
    assert receipt.blind
    assert [(step.rung, step.after) for step in receipt.ladder][:3] == [("interrupt", 2), ("cancel", 2), ("kill", 7)]
    clock.advance(1.9)
    await _ticks()
    assert handle.status == "stopping"
    clock.advance(0.1)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "cancel")
    assert handle.run.receipt.blind


async def _looks_by_checking():
    stoppable.check()
    await asyncio.sleep(60)


async def _looks_by_asking():
    assert not stoppable.should_stop()
    await asyncio.sleep(60)


async def _looks_by_a_boundary():
    with stoppable.boundary("tool", "done"):
        pass
    await asyncio.sleep(60)


async def _looks_by_a_child():
    await stoppable.call(asyncio.sleep, 0)
    await asyncio.sleep(60)


async def _looks_by_a_hook():
    stoppable.on_stop(lambda: None)
    await asyncio.sleep(60)


async def _looks_by_a_shield():
    with stoppable.shielded(1):
        pass
    await asyncio.sleep(60)


LOOKS = [_looks_by_checking, _looks_by_asking, _looks_by_a_boundary, _looks_by_a_child, _looks_by_a_hook]


@pytest.mark.parametrize("agent", [*LOOKS, _looks_by_a_shield])
async def test_a_run_that_has_looked_gets_its_grace(agent, clock):
    handle = await stoppable.spawn(agent)
    await wait(lambda: handle.run.checked_at > -math.inf or handle.run.members is not None)
    await _ticks()
    receipt = await handle.stop()
    assert not receipt.blind
    clock.advance(10.9)
    await _ticks()
    assert handle.status == "stopping"
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"


async def test_a_grace_that_the_stop_names_is_kept(clock):
    handle = await stoppable.spawn(asyncio.sleep, 60)
    await wait(lambda: handle.status == "running")
    receipt = await handle.stop(grace=5)
    assert not receipt.blind
    assert receipt.ladder[0].after == 5
    await handle.stop("kill")
    await handle.outcome()


def test_a_blind_grace_never_prolongs_the_policy():
    policy = Policy(grace=0.5, interrupt=0.1, blind_grace=30)
    steps = dict(policy.schedule(stoppable.Mode.GRACEFUL, blind_after=policy.blind_wait))
    assert steps[stoppable.Rung.CANCEL] == 0.6


async def test_a_run_that_looks_after_the_stop_gets_its_grace_after_all(clock):
    """It obeys now: two seconds would cut its clean-up."""
    go_on, saved = asyncio.Event(), asyncio.Event()
    steps = []

    async def agent():
        await go_on.wait()
        try:
            stoppable.check()
        finally:
            steps.append("cleaning")
            await saved.wait()
            steps.append("saved")

    handle = await stoppable.spawn(agent)
    await wait(lambda: handle.status == "running")
    assert (await handle.stop()).blind
    go_on.set()
    await wait(lambda: steps)
    clock.advance(9)
    await _ticks()
    assert handle.run.rung is None
    saved.set()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.clean, steps) == ("stopped", True, ["cleaning", "saved"])
    assert not handle.run.receipt.blind


@pytest.mark.parametrize("agent", [_looks_by_checking, _looks_by_asking, _looks_by_a_boundary, _looks_by_a_child])
async def test_a_run_that_has_not_looked_for_longer_than_its_blind_grace_is_blind_again(agent, clock):
    handle = await stoppable.spawn(agent)
    await wait(lambda: handle.run.checked_at > -math.inf)
    await _ticks()
    clock.advance(3)
    receipt = await handle.stop()
    assert (receipt.blind, receipt.ladder[0].after) == (True, 2)
    clock.advance(2)
    assert (await handle.outcome()).rung == "cancel"


async def test_with_a_blind_grace_of_zero_a_run_that_just_looked_gets_its_grace(clock):
    handle = await stoppable.spawn(_looks_by_checking, policy=Policy(blind_grace=0))
    await wait(lambda: handle.run.checked_at > -math.inf)
    clock.advance(1.5)
    assert not (await handle.stop()).blind
    await handle.stop("kill")
    await handle.outcome()


async def test_a_run_that_keeps_looking_is_not_blind_however_long_it_works():
    """In real time: the control thread keeps the time at which a run looked."""

    async def agent():
        while True:
            stoppable.check()
            await asyncio.sleep(0.01)

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(3)
    assert not (await handle.stop()).blind
    assert (await handle.outcome()).rung == "signal"


async def _inside_a_boundary():
    with stoppable.boundary("llm", "model"):
        await asyncio.sleep(60)


async def _in_a_wait():
    await stoppable.sleep(60)


@pytest.mark.parametrize("agent", [_inside_a_boundary, _in_a_wait, _looks_by_a_hook])
@pytest.mark.parametrize("is_child", [False, True])
async def test_a_run_in_which_something_would_notice_the_stop_is_not_blind(agent, is_child, clock):
    """However long ago it began, and also if only a child would notice it."""

    async def parent():
        await asyncio.gather(stoppable.call(agent), asyncio.sleep(60))

    handle = await stoppable.spawn(parent if is_child else agent)
    await wait(lambda: handle.run.checked_at > -math.inf)
    await _ticks()
    clock.advance(30)
    assert not (await handle.stop()).blind
    await handle.stop("kill")
    await handle.outcome()


async def test_a_run_that_leaves_a_long_call_has_just_looked(clock):
    done, left = asyncio.Event(), asyncio.Event()

    async def agent():
        with stoppable.boundary("llm", "model"):
            await done.wait()
        left.set()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await _ticks()
    clock.advance(30)
    done.set()
    await left.wait()
    assert not (await handle.stop()).blind
    await handle.stop("kill")
    await handle.outcome()


async def test_a_call_that_a_library_makes_in_an_executor_is_no_look(clock):
    """One is enough to make no difference: the openai client makes one, at its first request."""
    called = asyncio.Event()

    async def agent():
        await asyncio.to_thread(int)
        called.set()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await called.wait()
    assert (await handle.stop()).blind
    clock.advance(2)
    assert (await handle.outcome()).rung == "cancel"


async def test_a_call_in_an_executor_is_waited_for_and_then_the_run_is_blind(clock):
    begun, done, returned = threading.Event(), threading.Event(), asyncio.Event()

    def tool():
        begun.set()
        done.wait(60)

    async def agent():
        await asyncio.to_thread(tool)
        returned.set()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await wait(begun.is_set)
    receipt = await handle.stop()
    assert (receipt.blind, receipt.in_flight, receipt.ladder[0].after) == (False, ("thread:" + tool.__qualname__,), 10)
    clock.advance(5)
    await _ticks()
    assert handle.run.rung is None, "it may finish"
    done.set()
    await returned.wait()
    await wait(lambda: not handle.run.in_flight)
    clock.advance(0.5)
    assert handle.run.receipt.blind
    clock.advance(2)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "cancel")
    assert [str(node.fate) for node in handle.run.receipt.entries if node.kind == "thread"] == ["finished"]


async def test_a_run_that_looks_after_its_call_in_an_executor_keeps_its_grace(clock):
    begun, done = threading.Event(), threading.Event()
    saved = asyncio.Event()

    def tool():
        begun.set()
        done.wait(60)

    async def agent():
        await asyncio.to_thread(tool)
        try:
            stoppable.check()
        finally:
            await saved.wait()

    handle = await stoppable.spawn(agent)
    await wait(begun.is_set)
    await handle.stop()
    done.set()
    await wait(lambda: handle.run.noticed)
    clock.advance(9)
    await _ticks()
    assert (handle.run.rung, handle.run.receipt.blind) == (None, False)
    saved.set()
    assert (await handle.outcome()).clean


async def test_a_run_that_ended_while_its_call_was_waited_for_is_not_called_blind(clock):
    begun, done = threading.Event(), threading.Event()

    def tool():
        begun.set()
        done.wait(60)

    handle = await stoppable.spawn(asyncio.to_thread, tool)
    await wait(begun.is_set)
    await handle.stop()
    done.set()
    await handle.outcome()
    stop = handle.run.first_stop
    assert stop.is_call_awaited
    assert not stop.recheck_call(), "its receipt is final"
    assert not handle.run.receipt.blind

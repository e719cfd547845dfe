"""G8: never completed after a delivery, never failed because of the stop, never stopped before all is known dead."""

import asyncio
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine.processes.group import live
from stoppable.testing.participant_suite import (
    test_a_run_that_ends_before_anything_was_delivered_is_completed_and_the_stop_too_late,
    test_an_agent_that_swallows_the_stop_and_returns_is_stopped_with_its_value,
    test_an_error_while_stopping_is_attached_and_not_clean,
    test_looking_at_the_token_is_no_delivery,
    test_should_stop_answering_true_is_a_delivery,
)
from stoppable.testing.scripts import Effect, Fail, FileProbe

__all__ = [  # what every kind of participant must do, for those of others too
    "test_a_run_that_ends_before_anything_was_delivered_is_completed_and_the_stop_too_late",
    "test_an_agent_that_swallows_the_stop_and_returns_is_stopped_with_its_value",
    "test_an_error_while_stopping_is_attached_and_not_clean",
    "test_looking_at_the_token_is_no_delivery",
    "test_should_stop_answering_true_is_a_delivery",
]


async def test_a_run_that_fails_before_anything_was_delivered_is_failed(kind, probe):
    handle = await kind.start([Effect("last"), Fail("own error")], probe)
    await probe.seen("enter last")
    await handle.stop()
    probe.release()
    outcome = await handle.outcome()
    assert (outcome.status, str(outcome.error)) == ("failed", "own error")
    with pytest.raises(stoppable.RunFailed, match="stopped by user") as caught:
        await handle.result()
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_stop_before_the_start_never_runs_the_body(kind, probe):
    ran = []

    async def body():
        ran.append(True)

    async with stoppable.open_run("parent"):
        handle = await stoppable.spawn(body)
        receipt = await handle.stop()
        assert (receipt.status, handle.run.started_at) == ("pending", None)
        outcome = await handle.outcome()
    assert (outcome.status, outcome.clean) == ("stopped", True)
    assert not ran
    assert [node.fate for node in handle.run.receipt.entries] == ["stopped"]


async def test_with_gather_a_sibling_that_runs_on_keeps_the_run_stopping():
    release = asyncio.Event()
    sibling_ran_on = []

    async def stubborn():
        with stoppable.boundary("tool", "stubborn"):
            await release.wait()
        sibling_ran_on.append(True)

    async def polite():
        with stoppable.boundary("tool", "polite"):
            await asyncio.sleep(0.001)
        stoppable.check()

    async def agent():
        await asyncio.gather(stubborn(), polite())

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await handle.stop("cooperative")
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert handle.run.body_end is not None
    assert handle.status == "stopping"
    release.set()
    outcome = await handle.outcome()
    assert outcome.status == "stopped"
    assert sibling_ran_on == [True]


async def test_a_run_whose_body_left_a_child_behind_ends_with_the_child():
    release = asyncio.Event()

    async def child():
        await release.wait()

    async def parent():
        await stoppable.spawn(child)
        return "value"

    handle = await stoppable.spawn(parent)
    for _ in range(5):
        await asyncio.sleep(0)
    assert handle.status == "running"
    release.set()
    assert await handle.result() == "value"


async def test_a_stop_still_reaches_a_child_that_was_left_behind():
    async def child():
        await stoppable.sleep(60)

    async def parent():
        await stoppable.spawn(child)
        return "value"

    handle = await stoppable.spawn(parent)
    for _ in range(5):
        await asyncio.sleep(0)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result, outcome.rung) == ("stopped", "value", "signal")


async def test_a_run_that_fails_stops_the_children_it_left_behind():
    spawned = []

    async def child():
        await stoppable.sleep(60)

    async def parent():
        spawned.append(await stoppable.spawn(child))
        raise ValueError("parent broke")

    handle = await stoppable.spawn(parent)
    outcome = await handle.outcome()
    assert outcome.status == "failed"
    child_outcome = await spawned[0].outcome()
    assert (child_outcome.status, child_outcome.reason.kind) == ("stopped", "parent")


async def test_a_stopping_ancestor_of_a_lost_node_is_lost(clock):
    """The child ignores everything; when it is given up, so is its parent, though the parent's own body has ended."""
    release = asyncio.Event()

    async def child():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    async def parent():
        await (await stoppable.spawn(child)).outcome()

    handle = await stoppable.spawn(parent)
    await asyncio.sleep(0.01)
    await handle.stop("kill")
    clock.advance(2)
    outcome = await handle.outcome()
    assert outcome.status == "lost"
    assert {node.fate for node in handle.run.receipt.entries if node.kind == "run"} == {"lost"}
    release.set()
    await asyncio.sleep(0.01)
    assert handle.status == "lost"


async def test_a_lost_child_that_died_later_does_not_make_its_parent_lost(clock):
    release, died = asyncio.Event(), asyncio.Event()

    async def child():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    async def parent():
        handle = await stoppable.spawn(child)
        await asyncio.sleep(0.01)
        await handle.stop("kill")
        clock.advance(2)
        assert (await handle.outcome()).status == "lost"
        release.set()
        await until(handle._carrier.done)
        died.set()
        await stoppable.sleep(60)

    handle = await stoppable.spawn(parent)
    await died.wait()
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_boundary_open_on_somebody_elses_thread_keeps_the_run_stopping(mode):
    """Frameworks run blocking tools on threads of their own: the run is not stopped while one is inside a tool."""
    entered, release = threading.Event(), threading.Event()
    effects = []

    def tool():
        with stoppable.boundary("tool", "flight"):
            entered.set()
            release.wait(60)
            effects.append("flight")

    async def agent():
        await asyncio.gather(asyncio.to_thread(tool), _check_when(entered))

    handle = await stoppable.spawn(agent)
    while not entered.is_set():
        await asyncio.sleep(0.001)
    await handle.stop(mode, grace=0)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert handle.run.body_end is not None
    assert handle.status == "stopping"
    release.set()
    outcome = await handle.outcome()
    assert (outcome.status, effects) == ("stopped", ["flight"])


async def _check_when(event):
    while not event.is_set() or not stoppable.current_run().token.stopped:
        await asyncio.sleep(0.001)
    stoppable.check()


async def test_a_thread_that_stays_inside_a_boundary_makes_the_run_lost_and_a_final_receipt_stays_as_it_is(clock):
    entered, release = threading.Event(), threading.Event()

    def tool():
        with stoppable.boundary("tool", "stuck"):
            entered.set()
            release.wait(60)

    async def agent():
        await asyncio.to_thread(tool)

    handle = await stoppable.spawn(agent)
    while not entered.is_set():
        await asyncio.sleep(0.001)
    await handle.stop("kill")
    while handle.run.body_end is None:
        await asyncio.sleep(0.001)
    clock.advance(2)
    assert (await handle.outcome()).status == "lost"
    final = handle.run.receipt
    assert [(node.kind, node.fate) for node in final.entries] == [
        ("run", "lost"),
        ("participant", "abandoned"),
        ("thread", "abandoned"),
        ("tool", "abandoned"),
    ]
    assert "thread stoppable-pool" in final.entries[1].name
    release.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert handle.run.receipt == final


async def test_a_process_that_its_group_left_behind_keeps_the_run_stopping(clock, tmp_path):
    """The leader dies of TERM, and what it started in the background does not."""
    probe = FileProbe(tmp_path)

    async def agent():
        stubborn = "(trap '' TERM; echo up >> notes; while :; do sleep 0.01; done)"
        await stoppable.run_process(f"{stubborn} & wait", shell=True, cwd=tmp_path)

    handle = await stoppable.spawn(agent)
    await probe.seen("up")
    await handle.stop("immediate")
    (group,) = live
    while group.returncode is None or handle.run.body_end is None:
        await asyncio.sleep(0.001)
    handle.run.settle()
    assert handle.status == "stopping"
    clock.advance(5)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "kill", False)


# `stopped` needs a stop


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_block_that_raises_an_exit_of_its_own_has_failed(error):
    with pytest.raises(error):
        with stoppable.open_run("work") as run:
            raise error
    assert (run.status, run.outcome.reason, type(run.outcome.error)) == ("failed", None, error)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_a_blocking_agent_that_raises_an_exit_of_its_own_has_failed(error):
    def agent():
        raise error

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "failed"
    with pytest.raises(stoppable.RunFailed) as caught:
        await handle.result()
    assert isinstance(caught.value.__cause__, error)


async def _cancelled_future():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def _cancelled_task():
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def _raised():
    raise asyncio.CancelledError


@pytest.mark.parametrize("agent", [_cancelled_future, _cancelled_task, _raised])
async def test_an_agent_that_nobody_cancelled_and_that_ends_in_a_cancelled_error_has_failed(agent):
    handle = await stoppable.spawn(agent)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.reason, type(outcome.error)) == ("failed", None, asyncio.CancelledError)
    async with stoppable.open_run("outer") as outer:
        with pytest.raises(asyncio.CancelledError):
            async with stoppable.open_run("inner") as inner:
                await agent()
    assert (inner.status, outer.status) == ("failed", "completed")


async def test_an_exit_of_its_own_stops_what_the_body_started():
    async def child():
        await stoppable.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        async with stoppable.open_run("work") as run:
            handle = await stoppable.spawn(child)
            await asyncio.sleep(0)
            raise asyncio.CancelledError
    outcome = await handle.outcome()
    assert (run.status, outcome.status, outcome.reason.kind) == ("failed", "stopped", "parent")


async def test_an_exit_after_a_delivered_stop_is_attached_to_the_stop():
    async def agent():
        try:
            await stoppable.sleep(60)
        except stoppable.AgentStopped:
            raise asyncio.CancelledError from None

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, type(outcome.error)) == ("stopped", asyncio.CancelledError)


async def test_a_stop_that_nobody_asked_for_is_a_clear_error():
    async def nameless():
        raise stoppable.AgentStopped

    async def forged():
        run = stoppable.current_run()
        raise stoppable.AgentStopped(run.id, stoppable.Reason())

    outcome = await (await stoppable.spawn(nameless)).outcome()
    assert (outcome.status, type(outcome.error)) == ("failed", stoppable.InvalidArgument)
    assert "current_run().stop()" in str(outcome.error)
    assert (await (await stoppable.spawn(forged)).outcome()).status == "failed"

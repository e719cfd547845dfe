"""The cases of the other files once more, with bodies that never mention stoppable."""

import asyncio
import contextlib
import inspect
import os

import pytest
from tests.waiting import until, until_its_loop_knows

import stoppable
from stoppable._engine.processes import table

from . import plain_bodies as bodies


@pytest.fixture(autouse=True)
def desk(tmp_path):
    stoppable.instrument()
    desk = bodies.Desk(tmp_path)
    yield desk
    desk.go_on.set()


def test_the_bodies_never_mention_the_library():
    assert "stoppable" not in inspect.getsource(bodies)


# The seven cases of a cooperative stop with `task.cancel()` behind it


async def test_await_and_async_finally_stops_and_every_view_agrees(desk):
    handle = await stoppable.spawn(bodies.awaits_and_cleans_up, desk)
    await until(desk.began.is_set)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert desk.notes == ["begin", "closed"]
    assert {outcome.status, handle.status, handle.run.receipt.status} == {"stopped"}


async def test_a_stop_after_completion_says_so(desk):
    desk.go_on.set()
    handle = await stoppable.spawn(bodies.sleeps_and_returns, desk)
    await handle.outcome()
    receipt = await handle.stop()
    assert (receipt.answer, receipt.status) == ("already_finished", "completed")


async def test_a_run_in_the_background_is_reached(desk):
    handle = await stoppable.spawn(bodies.works_in_the_background, desk)
    await until(desk.began.is_set)
    await handle.stop(grace=0.05)
    assert (await handle.outcome()).status == "stopped"


async def test_a_blocking_sleep_and_a_return_is_completed_and_the_stop_too_late(desk):
    handle = await stoppable.spawn(bodies.sleeps_and_returns, desk)
    await until(desk.began.is_set)
    await handle.stop()
    desk.go_on.set()
    assert (await handle.outcome()).status == "completed"
    assert handle.run.receipt.too_late


async def test_a_body_that_swallows_the_cancel_is_escalated_and_never_a_success(desk, clock):
    handle = await stoppable.spawn(bodies.swallows_the_cancel, desk)
    await until(desk.began.is_set)
    await handle.stop("immediate")
    await until(lambda: len(desk.notes) == 1)
    clock.advance(5)
    await until(lambda: len(desk.notes) == 2)
    clock.advance(2)
    assert (await handle.outcome()).status == "lost"
    handle._carrier.cancel()
    await asyncio.gather(handle._carrier, return_exceptions=True)


async def test_work_in_an_executor_has_no_effect_after_stopped(desk):
    handle = await stoppable.spawn(bodies.works_in_an_executor, desk)
    await until(desk.began.is_set)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("thread:works_in_an_executor.<locals>.work",)
    assert (await handle.outcome()).status == "stopped"
    at_the_end = len(desk.notes)
    await asyncio.sleep(0.05)
    assert len(desk.notes) == at_the_end


async def test_a_subprocess_is_not_orphaned(desk):
    handle = await stoppable.spawn(bodies.runs_an_asyncio_subprocess, desk)
    await until(desk.is_there, 30)
    receipt = await handle.stop("immediate")
    assert len(receipt.in_flight) == 1
    assert (await handle.outcome()).status == "stopped"
    with pytest.raises(ProcessLookupError):
        os.kill(desk.notes[0], 0)
    await until_its_loop_knows(desk.process)


# The eight cases of a cancel token per conversation, and two of its terminal and its delegates


@pytest.mark.parametrize("body", [bodies.calls_a_deaf_tool, bodies.calls_three_tools_at_once])
async def test_deaf_tools_keep_the_run_stopping_until_they_have_ended(body, desk):
    handle = await stoppable.spawn(body, desk)
    await until(desk.began.is_set)
    receipt = await handle.stop("immediate")
    assert receipt.answer == "accepted"
    await until(lambda: handle.run.body_end is not None)  # neither the stop nor the loop waits for the tools
    assert handle.status == "stopping"
    desk.go_on.set()
    assert (await handle.outcome()).status == "stopped"


async def test_a_late_thread_stays_stopped_when_the_next_run_has_begun(desk, tmp_path):
    first = await stoppable.spawn(bodies.leaves_a_zombie, desk)
    await until(desk.began.is_set)
    await first.stop("immediate")
    other = bodies.Desk(tmp_path)
    second = await stoppable.spawn(bodies.waits, other)
    await until(other.began.is_set)
    desk.go_on.set()
    assert (await first.outcome()).status == "stopped"
    assert desk.notes == ["AgentStopped"]
    assert not second.run.token.stopped
    await second.stop("immediate")
    await second.outcome()


async def test_the_stop_of_a_blocking_run_returns_at_once_and_its_next_command_is_not_started(desk):
    handle = await stoppable.spawn(bodies.blocks_and_then_runs_a_command, desk)
    await until(desk.began.is_set)
    await handle.stop()
    assert handle.status == "stopping"
    desk.go_on.set()
    assert (await handle.outcome()).status == "stopped"
    assert desk.notes == []


async def test_a_timeout_around_the_run_is_a_timeout_and_a_cancel_a_cancel(desk):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02), stoppable.open_run("conversation"):
            await bodies.waits(desk)

    async def conversation():
        async with stoppable.open_run("conversation"):
            await bodies.waits(desk)

    task = asyncio.create_task(conversation())
    await until(lambda: len(desk.notes) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_sub_agent_on_a_bare_thread_starts_no_further_tool_call(desk):
    handle = await stoppable.spawn(bodies.delegates_to_a_sub_agent_on_a_bare_thread, desk)
    await until(lambda: len(desk.notes) >= 3)
    await handle.stop()
    at_the_stop = len(desk.notes)
    assert (await handle.outcome()).status == "stopped"
    assert len(desk.notes) <= at_the_stop + 1  # the call in flight may finish


async def test_a_stop_before_the_start_is_not_lost(desk):
    handle = await stoppable.spawn(bodies.waits, desk)
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"
    assert desk.notes == []


async def test_a_stop_from_the_last_callback_does_not_hit_the_callers_later_await(desk):
    with contextlib.suppress(stoppable.RunStopped):
        async with stoppable.open_run("conversation") as run:
            run.stop("immediate")
            await bodies.waits(desk)
    await asyncio.sleep(0.05)
    assert asyncio.current_task().cancelling() == 0


async def test_a_terminal_dies_with_its_command_and_its_background_job(desk):
    before = set(table.children())
    handle = await stoppable.spawn(bodies.uses_a_terminal, desk)
    await until(desk.is_there)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("spawn:bash",)
    assert (await handle.outcome()).status == "stopped"
    assert set(table.children()) <= before

"""The seven cases in which a cooperative stop with `task.cancel()` behind it told an untruth, as plain agents.

Each ends with the truth: `stopped` with nothing left, `completed` with a stop that came too late, or `lost` with the
name of what is left.
"""

import asyncio
import os
import sys
import threading
import time

import pytest
from tests.waiting import until

import stoppable


async def test_await_and_async_finally_stops_and_every_view_agrees():
    closed = []

    async def agent():
        try:
            with stoppable.boundary("llm"):
                await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            closed.append("client")

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0.01)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert closed == ["client"]
    assert {outcome.status, handle.status, handle.run.receipt.status} == {"stopped"}
    assert outcome.clean


async def test_a_stop_after_completion_says_so():
    handle = await stoppable.spawn(asyncio.sleep, 0)
    await handle.outcome()
    receipt = await handle.stop()
    assert (receipt.answer, receipt.status) == ("already_finished", "completed")


async def test_a_run_in_the_background_is_reached():
    async def agent():
        for _ in range(1000):
            await stoppable.sleep(0.01)
        return "success"

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"


async def test_a_blocking_sleep_and_a_return_is_completed_and_the_stop_too_late():
    """Nothing could be delivered: the truth is that it had finished, and the receipt says the stop came too late."""

    began, go_on = threading.Event(), threading.Event()

    def agent():
        began.set()
        go_on.wait(30)
        return "value"

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    await handle.stop()
    go_on.set()
    assert (await handle.outcome()).status == "completed"
    assert handle.run.receipt.too_late


async def test_a_body_that_swallows_the_cancel_is_escalated_and_never_a_success(clock):
    swallowed = 0

    async def agent():
        nonlocal swallowed
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed += 1
        return "success"

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0)
    await handle.stop("immediate")
    await until(lambda: swallowed == 1)
    clock.advance(5)
    await until(lambda: swallowed == 2)
    assert handle.run.rung == "kill"
    clock.advance(2)
    assert (await handle.outcome()).status == "lost"
    handle._carrier.cancel()
    await asyncio.gather(handle._carrier, return_exceptions=True)


async def test_work_in_an_executor_has_no_effect_after_stopped():
    effects, started = [], threading.Event()

    def work():
        for number in range(100):
            with stoppable.boundary("tool"):
                effects.append(number)
                started.set()
                time.sleep(0.01)

    async def agent():
        await asyncio.get_running_loop().run_in_executor(None, stoppable.bind(work))

    handle = await stoppable.spawn(agent)
    while not started.is_set():
        await asyncio.sleep(0.001)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    at_the_end = len(effects)
    await asyncio.sleep(0.05)
    assert len(effects) == at_the_end


async def test_a_subprocess_is_not_orphaned(tmp_path):
    there = tmp_path / "there"

    async def agent():
        code = f"import pathlib, time; pathlib.Path({str(there)!r}).touch(); time.sleep(60)"
        await stoppable.run_process([sys.executable, "-c", code])

    handle = await stoppable.spawn(agent)
    while not there.exists():
        await asyncio.sleep(0.001)
    (pid,) = {member.holder.pid for member in handle.run.members if hasattr(member, "holder")}
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert outcome.status == "stopped"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

"""The eight cases in which a cancel token per conversation told an untruth, as plain agents of the same shape."""

import asyncio
import threading

import pytest
from tests.waiting import until

import stoppable


async def test_an_uncooperative_tool_keeps_the_run_stopping_until_it_has_ended():
    began, release = threading.Event(), threading.Event()

    def tool():
        began.set()
        release.wait(30)

    async def agent():
        await stoppable.to_thread(tool)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    await handle.stop("immediate")
    await until(lambda: handle.run.body_end is not None)  # the task was cancelled, the tool works on
    assert handle.status == "stopping"
    release.set()
    assert (await handle.outcome()).status == "stopped"


async def test_a_late_thread_keeps_its_stopped_token_when_the_next_run_has_begun():
    """The token is present and stopped during the stop, after it, and when the next run, with a fresh one, is there."""
    seen, began, proceed = [], threading.Event(), [threading.Event() for _ in range(3)]

    def zombie():
        began.set()
        for event in proceed:
            event.wait(30)
            seen.append(stoppable.should_stop())

    async def conversation():
        await stoppable.to_thread(zombie)

    first = await stoppable.spawn(conversation)
    await until(began.is_set)
    await first.stop("immediate")
    proceed[0].set()
    await until(lambda: len(seen) == 1)
    second = await stoppable.spawn(stoppable.sleep, 60)
    await until(lambda: second.status == "running")
    proceed[1].set()
    await until(lambda: len(seen) == 2)
    assert not second.run.token.stopped
    await second.stop()
    await second.outcome()
    proceed[2].set()
    assert (await first.outcome()).status == "stopped"
    assert seen == [True, True, True]
    assert first.run.token.stopped


async def test_three_parallel_tools_neither_delay_the_stop_nor_stall_the_loop():
    began, release = threading.Barrier(4), threading.Event()

    def tool():
        began.wait(30)
        release.wait(30)

    async def agent():
        await asyncio.gather(*(stoppable.to_thread(tool) for _ in range(3)))

    handle = await stoppable.spawn(agent)
    await asyncio.to_thread(began.wait, 30)
    receipt = await handle.stop("immediate")
    await until(lambda: handle.run.body_end is not None)  # though the tools work on
    assert receipt.answer == "accepted"
    release.set()
    assert (await handle.outcome()).status == "stopped"


async def test_the_stop_of_a_blocking_run_returns_at_once():
    began, release = threading.Event(), threading.Event()

    def agent():
        began.set()
        release.wait(30)
        stoppable.check()

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    await handle.stop()
    assert handle.status == "stopping"
    release.set()
    assert (await handle.outcome()).status == "stopped"


async def test_a_timeout_around_the_run_is_a_timeout_and_a_cancel_a_cancel():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            async with stoppable.open_run("conversation"):
                await asyncio.sleep(60)

    async def conversation():
        async with stoppable.open_run("conversation"):
            await asyncio.sleep(60)

    task = asyncio.create_task(conversation())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_sub_agent_starts_no_further_tool_call():
    calls = []

    @stoppable.agent
    async def sub_agent():
        for number in range(100):
            with stoppable.boundary("tool"):
                calls.append(number)
                await asyncio.sleep(0.01)

    async def parent():
        await sub_agent()

    handle = await stoppable.spawn(parent)
    await until(lambda: len(calls) == 3)
    await handle.stop()
    at_the_stop = len(calls)
    assert (await handle.outcome()).status == "stopped"
    assert len(calls) == at_the_stop


async def test_a_stop_before_the_start_is_not_lost():
    ran = []

    async def tool():
        ran.append(True)

    handle = await stoppable.spawn(tool)
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"
    assert not ran


async def test_a_stop_from_the_last_callback_does_not_hit_the_callers_later_await():
    async with stoppable.open_run("conversation") as run:
        await asyncio.sleep(0)
    run.stop("immediate")
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("conversation") as run:
            run.stop("immediate")
            await asyncio.sleep(0)
            await asyncio.sleep(60)
    await asyncio.sleep(0.05)
    assert asyncio.current_task().cancelling() == 0

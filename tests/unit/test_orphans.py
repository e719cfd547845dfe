"""no_orphans sees every kind of thing that a test may leave running."""

import asyncio
import threading

import pytest

import stoppable
from stoppable.testing import no_orphans


async def test_a_thread_is_seen():
    release = threading.Event()
    thread = threading.Thread(target=release.wait, args=(5,), name="left behind")
    with pytest.raises(AssertionError, match="left behind"), no_orphans(within=0.01):
        thread.start()
    release.set()
    thread.join(60)


async def test_a_task_that_executes_a_run_is_seen():
    async def agent():
        await stoppable.sleep(60)

    with pytest.raises(AssertionError, match="task agent"), no_orphans(within=0.01):
        handle = await stoppable.spawn(agent)
        await asyncio.sleep(0)
    await handle.stop()
    await handle.outcome()


async def test_a_process_group_is_seen():
    with pytest.raises(AssertionError, match=r"process group \d+ \(sleep\)"), no_orphans(within=0.01):
        process = await stoppable.open_process(["sleep", "60"])
    await process.aclose()
    with no_orphans(within=0.5):
        pass


async def test_a_worker_process_is_seen():
    with pytest.raises(AssertionError, match=r"agent process \d+"), no_orphans(within=0.01):
        handle = await stoppable.spawn(asyncio.sleep, 60, isolation="process")
        while not handle.run.members:
            await asyncio.sleep(0.001)
    await handle.stop("kill")
    await handle.outcome()


async def test_what_was_there_before_is_not_the_blocks():
    async with await stoppable.open_process(["sleep", "60"]):
        with no_orphans(within=0):
            pass

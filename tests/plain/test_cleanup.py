"""What counts as clean-up after a stop: what the run's own stop unwinds, and nothing else."""

import asyncio
import subprocess
import sys
import threading

import pytest
from tests.waiting import until

import stoppable

TRUE = [sys.executable, "-S", "-c", ""]


class Commands:
    """Starts commands, and counts those that were let through and those that were refused."""

    def __init__(self):
        self.run = self.refused = 0

    def start(self):
        try:
            subprocess.run(TRUE, check=True)
        except stoppable.AgentStopped:
            self.refused += 1
            raise
        self.run += 1


@pytest.fixture
def commands():
    return Commands()


async def _timed_out(work):
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
    except TimeoutError:
        await work()


async def _cancelled_a_child(work):
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        await work()


async def _awaited_an_exit(work):
    try:
        sys.exit(3)
    except SystemExit:
        await work()


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
@pytest.mark.parametrize("handler", [_timed_out, _cancelled_a_child, _awaited_an_exit])
async def test_a_handler_of_another_exception_is_ordinary_work(commands, handler, mode):
    here, stopped, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work():
        here.set()
        try:
            await stopped.wait()
        except asyncio.CancelledError:  # a library that swallows a cancel
            cancelled.set()
            await asyncio.sleep(0)
        commands.start()

    async def agent():
        await handler(work)

    handle = await stoppable.spawn(agent)
    await here.wait()
    await handle.stop(mode)
    if mode == "immediate":
        await cancelled.wait()
    stopped.set()
    assert (await handle.outcome()).status == "stopped"
    assert (commands.run, commands.refused) == (0, 1)


async def test_an_error_that_a_framework_made_of_the_stop_is_no_clean_up(commands):
    """The agent answers the failed tool with more work: every attempt is refused."""
    here = asyncio.Event()

    async def call_tool():
        try:
            await stoppable.sleep(60)
        except BaseException as error:
            raise RuntimeError("the tool failed") from error

    async def agent():
        here.set()
        try:
            await call_tool()
        except RuntimeError:
            commands.start()

    handle = await stoppable.spawn(agent)
    await here.wait()
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"
    assert (commands.run, commands.refused) == (0, 1)


async def _finally(commands):
    try:
        await stoppable.sleep(60)
    finally:
        commands.start()


async def _nested_error(commands):
    try:
        await stoppable.sleep(60)
    finally:
        try:
            raise ValueError
        except ValueError:
            commands.start()


async def _helper(commands):
    async def clean_up():
        commands.start()

    try:
        await stoppable.sleep(60)
    finally:
        await clean_up()


async def _task_group(commands):
    async def sibling():
        try:
            await asyncio.sleep(60)
        finally:
            commands.start()

    async with asyncio.TaskGroup() as group:
        group.create_task(sibling())
        await stoppable.sleep(60)


async def _exception_group(commands):
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(stoppable.sleep(60))
            await asyncio.sleep(60)
    finally:
        commands.start()


async def _generator(commands):
    async def items():
        try:
            while True:
                yield await asyncio.sleep(0.001)
        finally:
            commands.start()

    async for _ in stoppable.stream(items()):
        pass


async def _swallowed_timeout_around(commands):
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
    except TimeoutError:
        await _finally(commands)


@pytest.mark.parametrize(
    "agent",
    [_finally, _nested_error, _helper, _task_group, _exception_group, _generator, _swallowed_timeout_around],
)
@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_what_the_stop_unwinds_may_start_commands(commands, agent, mode):
    handle = await stoppable.spawn(agent, commands)
    await until(lambda: handle.status == "running" and handle.run.started_at is not None)
    await asyncio.sleep(0.01)
    await handle.stop(mode)
    assert (await handle.outcome()).status == "stopped"
    assert (commands.run, commands.refused) == (1, 0)


async def test_the_clean_up_of_a_thread_may_start_commands(commands):
    here, stopped = threading.Event(), threading.Event()

    def agent():
        try:
            here.set()
            stopped.wait(60)
            stoppable.check()
        finally:
            commands.start()

    handle = await stoppable.spawn(agent)
    await until(here.is_set)
    await handle.stop()
    stopped.set()
    assert (await handle.outcome()).status == "stopped"
    assert (commands.run, commands.refused) == (1, 0)


async def test_a_call_that_timed_out_by_itself_has_finished_and_was_not_cancelled():
    """The cancel of the timeout is in the chain of its error; the stop did not end the call."""
    here, stopped = asyncio.Event(), asyncio.Event()

    async def agent():
        async with stoppable.boundary("llm", "model"):
            here.set()
            await stopped.wait()
            async with asyncio.timeout(0):
                await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await here.wait()
    await handle.stop()
    stopped.set()
    await handle.outcome()
    assert [str(node.fate) for node in (await handle.receipt()).entries if node.kind == "llm"] == ["finished"]

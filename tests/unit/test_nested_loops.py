"""A thread of a run may run an event loop of its own, as blocking frameworks do for async tools: CANCEL reaches it."""

import asyncio
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable import sync


class Work:
    """A coroutine that waits for ever, and cleans up when it is cut."""

    def __init__(self):
        self.began, self.effects, self.errors = threading.Event(), [], []

    async def wait(self):
        self.began.set()
        try:
            await asyncio.sleep(60)
            self.effects.append("after the stop")
        finally:
            await asyncio.sleep(0)
            self.effects.append("cleaned up")

    def blocking(self):
        asyncio.run(self.wait())
        self.effects.append("after the stop")

    def in_own_loop(self):
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self.wait())
        finally:
            loop.close()

    async def in_thread(self):
        await asyncio.to_thread(self.blocking)

    async def in_our_thread(self):
        await stoppable.to_thread(self.blocking)

    async def in_executor(self):
        await asyncio.get_running_loop().run_in_executor(None, self.blocking)

    async def bound(self):
        thread = threading.Thread(target=self._quiet, args=(stoppable.bind(self.blocking),))
        thread.start()
        await stoppable.to_thread(thread.join)

    def _quiet(self, call):
        try:
            call()
        except BaseException as error:
            self.errors.append(error)

    def of_child(self):
        sync.spawn(self.blocking).result()


AGENTS = ("blocking", "in_own_loop", "in_thread", "in_our_thread", "in_executor", "bound", "of_child")


@pytest.mark.parametrize("name", AGENTS)
async def test_an_immediate_stop_cancels_the_task_that_a_thread_runs_to_its_end(name):
    work = Work()
    handle = await stoppable.spawn(getattr(work, name))
    await until(work.began.is_set)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, work.effects) == ("stopped", "cancel", ["cleaned up"])


async def test_clean_up_in_a_loop_of_its_own_is_not_cut_at_cancel():
    cleaned = []
    cleaning, release = threading.Event(), threading.Event()

    async def clean_up():
        cleaning.set()
        while not release.is_set():
            await asyncio.sleep(0.001)
        cleaned.append(True)

    def agent():
        with stoppable.shielded(30):
            asyncio.run(clean_up())
        stoppable.check()

    handle = await stoppable.spawn(agent)
    await until(cleaning.is_set)
    await handle.stop("immediate")
    await until(lambda: handle.run.rung == "cancel")
    release.set()
    outcome = await handle.outcome()
    assert (outcome.status, cleaned) == ("stopped", [True])


async def test_the_stop_of_a_run_does_not_cancel_the_main_task_of_a_loop_that_calls_its_function():
    """A server calls back on its own thread, whose main task is not the run's (G9)."""
    began, release = threading.Event(), threading.Event()
    functions, cancels = [], []

    def function():
        began.set()
        assert release.wait(30)

    async def agent():
        functions.append(stoppable.bind(function))
        await asyncio.sleep(60)

    async def server():
        asyncio.get_running_loop().call_soon(functions[0])
        for _ in range(10):
            await asyncio.sleep(0)
        cancels.append(asyncio.current_task().cancelling())

    handle = await stoppable.spawn(agent)
    await until(lambda: functions)
    thread = threading.Thread(target=asyncio.run, args=(server(),))
    thread.start()
    await until(began.is_set)
    await handle.stop("immediate")
    await until(lambda: handle.run.rung == "cancel")
    release.set()
    await until(lambda: not thread.is_alive())
    assert ((await handle.outcome()).status, cancels) == ("stopped", [0])


async def test_a_detached_loop_outlives_the_stop():
    work, seen = Work(), []

    def agent():
        with stoppable.detached():
            asyncio.run(served())
        stoppable.check()

    async def served():
        work.began.set()
        while not seen:
            await asyncio.sleep(0.001)
        work.effects.append("served")

    handle = await stoppable.spawn(agent)
    await until(work.began.is_set)
    await handle.stop("immediate")
    await until(lambda: handle.run.rung == "cancel")
    seen.append(True)
    assert ((await handle.outcome()).status, work.effects) == ("stopped", ["served"])

"""Calls in plain executors take part; the threads that happen to execute them do not."""

import asyncio
import concurrent.futures
import contextvars
import functools
import queue
import socket
import subprocess
import threading

import anyio.to_thread
import pytest
from tests.waiting import until

import stoppable


class Tool:
    def __init__(self):
        self.began, self.release, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.answers = queue.SimpleQueue()

    def work(self):
        self.began.set()
        assert self.release.wait(30)
        self.ended.set()


async def _in_default(work):
    await asyncio.get_running_loop().run_in_executor(None, work)


async def _in_own(work):
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        await asyncio.wrap_future(executor.submit(work))


async def _in_anyio(work):
    await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


WAYS = {"to_thread": asyncio.to_thread, "run_in_executor": _in_default, "anyio": _in_anyio}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_run_is_not_stopped_before_its_calls_have_returned(way):
    tool = Tool()
    handle = await stoppable.spawn(functools.partial(way, tool.work))
    await until(tool.began.is_set)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("thread:Tool.work",)
    await until(lambda: handle.run.body_end is not None)
    assert handle.status == "stopping"
    tool.release.set()
    assert (await handle.outcome()).status == "stopped"
    assert tool.ended.is_set()


class _Wrapper:
    """A decorated function that is an object, as the methods of CrewAI's flows are."""

    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self):
        return self.__wrapped__()


def _in_context(*call):
    return functools.partial(contextvars.copy_context().run, *call)


def _in_two_contexts(function):
    return _in_context(contextvars.Context().run, function)


NAMES = {
    "in a copy of the context": (lambda tool: _in_context(tool.work), "Tool.work"),
    "in two contexts, as CrewAI calls it": (lambda tool: _in_two_contexts(tool.work), "Tool.work"),
    "in two contexts, wrapped in an object": (lambda tool: _in_two_contexts(_Wrapper(tool.work)), "Tool.work"),
    "written in C": (lambda tool: functools.partial(tool.answers.get, timeout=30), "SimpleQueue.get"),
}


@pytest.mark.parametrize(("wrap", "name"), NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_call_is_listed_by_the_name_of_its_function(way, wrap, name):
    tool = Tool()
    handle = await stoppable.spawn(functools.partial(way, wrap(tool)))
    await until(lambda: handle.run.in_flight)
    receipt = await handle.stop()
    tool.release.set()
    tool.answers.put("answer")
    await handle.outcome()
    assert receipt.in_flight == (f"thread:{name}",)


async def test_a_call_that_waits_for_a_thread_is_skipped():
    first, effects, submitted = Tool(), [], threading.Event()
    executor = concurrent.futures.ThreadPoolExecutor(1)

    def agent():
        calls = [executor.submit(first.work), *(executor.submit(effects.append, n) for n in range(5))]
        submitted.set()
        concurrent.futures.wait(calls)
        return [type(call.exception()).__name__ for call in calls]

    handle = await stoppable.spawn(agent)
    await until(submitted.is_set)
    await until(first.began.is_set)
    await handle.stop()
    first.release.set()
    outcome = await handle.outcome()
    assert (outcome.status, effects) == ("stopped", [])
    assert outcome.result == ["NoneType", *["AgentStopped"] * 5]
    executor.shutdown()


async def test_after_the_stop_no_call_is_submitted_but_names_are_looked_up():
    effects, told = [], asyncio.Event()

    async def agent():
        try:
            await told.wait()
        except asyncio.CancelledError:
            pass
        loop = asyncio.get_running_loop()
        await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
        effects.append("looked up")
        await asyncio.to_thread(effects.append, "never")

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert effects == ["looked up"]


async def test_clean_up_may_call_and_what_it_calls_may_start_processes():
    cleaned = []

    def clean(number):
        cleaned.append((number, subprocess.run(["true"], check=False).returncode))

    async def agent():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.to_thread(clean, 1)
            await anyio.to_thread.run_sync(clean, 2)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert cleaned == [(1, 0), (2, 0)]


async def test_a_run_that_completes_leaves_its_calls_alone():
    first, effects = Tool(), []
    executor = concurrent.futures.ThreadPoolExecutor(1)

    def agent():
        executor.submit(first.work)
        executor.submit(effects.append, "after")

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "completed"
    first.release.set()
    executor.shutdown()
    assert effects == ["after"]


async def test_the_call_sees_the_run_and_the_next_one_on_its_thread_does_not():
    executor = concurrent.futures.ThreadPoolExecutor(1)

    def agent():
        return executor.submit(stoppable.current_run).result() is stoppable.current_run()

    assert await (await stoppable.spawn(agent)).result()
    assert executor.submit(stoppable.current_run).result() is None
    executor.shutdown()


async def test_without_instrument_the_first_run_gives_a_loop_an_executor_that_takes_calls_along():
    stoppable.uninstrument()
    tool, cleaned = Tool(), []

    async def agent():
        try:
            await asyncio.to_thread(tool.work)
        finally:
            await asyncio.to_thread(cleaned.append, "clean")

    async def main():
        handle = await stoppable.spawn(agent)
        await until(tool.began.is_set)
        await handle.stop("immediate")
        await until(lambda: cleaned)
        assert handle.status == "stopping"
        tool.release.set()
        return (await handle.outcome()).status

    with concurrent.futures.ThreadPoolExecutor(1) as own_loop:
        assert own_loop.submit(asyncio.run, main()).result(60) == "stopped"
    assert cleaned == ["clean"]


async def test_without_instrument_calls_in_an_executor_that_the_loop_already_has_take_part_too():
    stoppable.uninstrument()
    tool, names = Tool(), []

    @stoppable.boundary("tool", "search")
    def search():
        tool.work()

    async def main():
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, names.append, "before the first run")
        executor = loop._default_executor
        handle = await stoppable.spawn(_in_default, search)
        await until(tool.began.is_set)
        receipt = await handle.stop("immediate")
        assert receipt.in_flight[1] == "tool:search"
        await until(lambda: handle.run.body_end is not None)
        tool.release.set()
        assert (await handle.outcome()).status == "stopped"
        stoppable.instrument()  # then the class sees to it, once
        tool.began.clear()
        tool.release.clear()
        handle = await stoppable.spawn(_in_default, search)
        await until(lambda: len(handle.run.in_flight) == 2)
        assert len((await handle.stop("immediate")).in_flight) == 2
        tool.release.set()
        await handle.outcome()
        await loop.run_in_executor(None, names.append, "outside")
        assert loop._default_executor is executor

    with concurrent.futures.ThreadPoolExecutor(1) as own_loop:
        own_loop.submit(asyncio.run, main()).result(60)
    assert names == ["before the first run", "outside"]


async def test_an_executor_that_somebody_gave_stays_the_executor_of_the_loop():
    loop = asyncio.get_running_loop()
    executor = concurrent.futures.ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    await (await stoppable.spawn(asyncio.sleep, 0)).result()
    assert loop._default_executor is executor


@pytest.mark.parametrize("as_partial", [False, True])
async def test_a_call_in_a_context_of_its_own_is_named_by_its_function(as_partial):
    tool = Tool()

    async def agent():
        loop = asyncio.get_running_loop()
        call = (contextvars.copy_context().run, tool.work)
        await loop.run_in_executor(None, *([functools.partial(*call)] if as_partial else call))

    handle = await stoppable.spawn(agent)
    await until(tool.began.is_set)
    assert handle.run.in_flight == ("thread:Tool.work",)
    tool.release.set()
    await handle.outcome()

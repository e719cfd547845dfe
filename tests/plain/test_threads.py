"""Plain threads of a run take part if they execute the user's code."""

import asyncio
import contextvars
import functools
import logging.handlers
import queue
import subprocess
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine.plain.library import alive_in


class Tool:
    """Something that a thread does until it is released."""

    def __init__(self):
        self.began, self.release, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self):
        self.began.set()
        assert self.release.wait(30)
        self.ended.set()


class OwnThread(threading.Thread):
    def __init__(self, tool):
        super().__init__(name="plain")
        self.tool = tool

    def run(self):
        self.tool()


STARTS = {
    "target": lambda tool: threading.Thread(target=tool, name="plain"),
    "daemon": lambda tool: threading.Thread(target=tool, name="plain", daemon=True),
    "partial": lambda tool: threading.Thread(target=functools.partial(tool), name="plain"),
    "context": lambda tool: threading.Thread(target=contextvars.copy_context().run, args=(tool,), name="plain"),
    "method": lambda tool: threading.Thread(target=tool.__call__, name="plain"),
    "own class": OwnThread,
}


@pytest.mark.parametrize("make", STARTS.values(), ids=STARTS)
async def test_a_run_is_not_stopped_before_its_threads_have_ended(make):
    tool = Tool()

    async def agent():
        make(tool).start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(tool.began.is_set)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("thread:plain",)
    await until(lambda: handle.run.body_end is not None)
    assert handle.status == "stopping"
    tool.release.set()
    outcome = await handle.outcome()
    assert outcome.status == "stopped"
    assert tool.ended.is_set()


async def test_a_thread_that_cannot_be_ended_makes_the_run_lost_and_is_named(clock):
    tool = Tool()

    async def agent():
        threading.Thread(target=tool, name="deaf").start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(tool.began.is_set)
    await handle.stop("immediate")
    await until(lambda: handle.run.body_end is not None)
    clock.advance(7)
    assert (await handle.outcome()).status == "lost"
    abandoned = [node.name for node in handle.run.receipt.nodes if node.kind == "participant"]
    assert len(abandoned) == 1
    assert "thread deaf" in abandoned[0]
    assert "test_threads.py" in abandoned[0]
    tool.release.set()


async def test_after_the_stop_no_thread_is_started():
    started, stopped = [], threading.Event()

    def agent():
        stopped.wait(30)
        threading.Thread(target=started.append, args=(lambda: 1,)).start()  # a builtin: nobody's, and not refused
        threading.Thread(target=lambda: started.append("user's")).start()

    handle = await stoppable.spawn(agent)
    await handle.stop("cooperative")
    stopped.set()
    assert (await handle.outcome()).status == "stopped"
    assert "user's" not in started


async def test_a_thread_of_a_thread_belongs_to_the_run_too():
    tool = Tool()

    async def agent():
        threading.Thread(target=lambda: threading.Thread(target=tool, name="inner").start()).start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(tool.began.is_set)
    await until(lambda: handle.run.in_flight == ("thread:inner",))
    await handle.stop("immediate")
    tool.release.set()
    assert (await handle.outcome()).status == "stopped"


async def test_a_threads_error_is_told_as_ever_and_a_stop_in_it_is_silent(monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    go_on = threading.Event()

    def broken():
        raise ValueError

    def looks():
        go_on.wait(30)
        stoppable.check()

    def agent():
        first, second = threading.Thread(target=broken), threading.Thread(target=looks)
        first.start()
        second.start()
        first.join()
        second.join()

    handle = await stoppable.spawn(agent)
    await until(lambda: told)
    await handle.stop()
    go_on.set()
    await handle.outcome()
    assert told == [ValueError]


async def test_a_run_that_completes_leaves_its_threads_alone():
    tool, after = Tool(), []

    def work():
        tool()
        thread = threading.Thread(target=lambda: after.append(subprocess.run(["true"], check=False).returncode))
        thread.start()
        thread.join()

    def agent():
        threading.Thread(target=work).start()
        return "done"

    handle = await stoppable.spawn(agent)
    assert await handle.result() == "done"
    await until(tool.began.is_set)
    tool.release.set()
    await until(lambda: after == [0])


async def test_a_later_stop_of_the_parent_waits_for_the_threads_of_a_completed_child():
    tool = Tool()

    async def child():
        threading.Thread(target=tool).start()

    async def parent():
        await stoppable.call(child)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(parent)
    await until(tool.began.is_set)
    await until(lambda: not handle.run.list_children() or handle.run.list_children()[0].outcome is not None)
    await handle.stop("immediate")
    await until(lambda: handle.run.body_end is not None)
    assert handle.status == "stopping"
    tool.release.set()
    assert (await handle.outcome()).status == "stopped"


async def test_a_timer_gives_up_at_the_stop():
    acted = []

    async def agent():
        threading.Timer(300, acted.append, ("late",)).start()
        user_timer = threading.Timer(300, lambda: acted.append("late"))
        user_timer.start()
        await stoppable.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"
    assert not acted
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()


async def test_a_timer_that_is_due_acts_in_the_run():
    acted = threading.Event()

    async def agent():
        threading.Timer(0, lambda: acted.set() if stoppable.current_run() else None).start()
        await asyncio.to_thread(acted.wait, 30)

    await (await stoppable.spawn(agent)).result()
    assert acted.is_set()


async def test_clean_up_may_start_threads_and_a_swallower_may_not():
    cleaned, swallowed = [], []

    def body():
        try:
            while True:
                stoppable.sync.sleep(0.001)
        finally:
            thread = threading.Thread(target=lambda: cleaned.append(subprocess.run(["true"], check=False).returncode))
            thread.start()
            thread.join(30)

    def swallower():
        for _ in range(3):
            try:
                stoppable.sync.sleep(30)
            except BaseException:
                pass
            try:
                threading.Thread(target=lambda: swallowed.append("effect")).start()
            except stoppable.AgentStopped:
                swallowed.append("refused")

    for agent in (body, swallower):
        handle = await stoppable.spawn(agent)
        await until(lambda handle=handle: handle.status == "running")
        await handle.stop()
        assert (await handle.outcome()).status == "stopped"
    assert cleaned == [0]
    assert swallowed == ["refused"] * 3


async def test_library_threads_start_and_are_only_listed():
    records = []

    async def agent():
        listener = logging.handlers.QueueListener(queue.Queue(), logging.NullHandler())
        listener.start()
        records.append((listener, alive_in(stoppable.current_run())))
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: records)
    receipt = await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert receipt.in_flight == ()
    listener, names = records[0]
    assert len(names) == 1
    listener.stop()


async def test_in_detached_and_outside_nothing_takes_part():
    tool, other = Tool(), Tool()
    threading.Thread(target=other).start()

    async def agent():
        with stoppable.detached():
            threading.Thread(target=tool).start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(tool.began.is_set)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert not tool.ended.is_set()
    tool.release.set()
    other.release.set()


async def test_a_thread_can_be_started_once_and_one_that_cannot_start_leaves_nothing_open(monkeypatch):
    async def agent():
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError):
            thread.start()
        name = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
        monkeypatch.setattr(threading, name, _refuse)
        with pytest.raises(RuntimeError):
            threading.Thread(target=lambda: None).start()
        monkeypatch.undo()
        return stoppable.current_run().in_flight

    assert await (await stoppable.spawn(agent)).result() == ()


def _refuse(*_args, **_kwargs):
    raise RuntimeError("can't start new thread")


async def test_an_installed_module_counts_as_the_users_if_it_is_included():
    listener = logging.handlers.QueueListener(queue.Queue(), logging.NullHandler())
    stoppable.instrument(include=["logging"])

    async def agent():
        listener.start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    await handle.stop("immediate")
    listener.stop()
    assert (await handle.outcome()).status == "stopped"

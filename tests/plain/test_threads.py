"""Plain threads of a run take part if they execute the user's code."""

import asyncio
import concurrent.futures
import contextvars
import functools
import importlib
import logging.handlers
import queue
import subprocess
import sys
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine.instrumentation import user_code
from stoppable._engine.instrumentation.threads import library_threads_in


class Tool:
    """Something that a thread does until it is released."""

    def __init__(self):
        self.began, self.release, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self):
        self.began.set()
        assert self.release.wait(30)
        self.ended.set()


class GroupThread(Tool):
    """A tool that also keeps what must be closed."""

    def keep(self, resource):
        self.resource = resource
        return resource

    def close(self):
        resource = getattr(self, "resource", None)
        if isinstance(resource, concurrent.futures.Executor):
            resource.shutdown()
        elif resource is not None:
            resource.close()


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
    abandoned = [node.name for node in handle.run.receipt.entries if node.kind == "participant"]
    assert len(abandoned) == 1
    assert "thread deaf" in abandoned[0]
    assert "test_threads.py" in abandoned[0]
    tool.release.set()


async def test_after_the_stop_no_thread_is_started():
    started, stopped = [], threading.Event()

    def agent():
        stopped.wait(30)
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
        records.append((listener, library_threads_in(stoppable.current_run())))
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


async def test_an_installed_module_counts_as_the_users_if_it_is_included(installed):
    began, release = threading.Event(), threading.Event()

    async def agent():
        installed.start(installed.work, began, release)
        await asyncio.sleep(60)

    stoppable.instrument(include=["an_installed_module"])
    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    receipt = await handle.stop("immediate")
    assert len(receipt.in_flight) == 1
    release.set()
    assert (await handle.outcome()).status == "stopped"


_INSTALLED = """
import threading

def work(began, release):
    began.set()
    release.wait(30)

def call(function, *args):
    function(*args)

def start(*target_and_args):
    target, *args = target_and_args
    made = threading.Thread(target=target, args=args, name="by a library")
    made.start()
    return made

def start_wrapper(original):
    def start(thread):
        original(thread)
    return start
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A module that counts as installed."""
    (tmp_path / "an_installed_module.py").write_text(_INSTALLED)
    monkeypatch.syspath_prepend(tmp_path)
    folders = user_code._library_folders()
    monkeypatch.setattr(user_code, "_library_folders", lambda: (*folders, str(tmp_path)))
    yield importlib.import_module("an_installed_module")
    del sys.modules["an_installed_module"]


def _runs_a_loop(tool):
    async def work():
        tool.began.set()
        while not tool.release.is_set():
            await asyncio.sleep(0.001)

    return work()


LIBRARY_TARGETS = {
    "method": lambda tool: threading.Thread(target=tool.release.wait, args=(30,)),
    "asyncio.run": lambda tool: threading.Thread(target=asyncio.run, args=(_runs_a_loop(tool),)),
    "partial": lambda tool: threading.Thread(target=functools.partial(asyncio.run, _runs_a_loop(tool))),
    "keyword": lambda tool: threading.Thread(target=asyncio.run, kwargs={"main": _runs_a_loop(tool)}),
    "run_until_complete": lambda tool: threading.Thread(
        target=tool.keep(asyncio.new_event_loop()).run_until_complete, args=(_runs_a_loop(tool),)
    ),
    "subprocess": lambda _: threading.Thread(target=subprocess.run, args=(["sleep", "60"],)),
    "timer": lambda _: threading.Timer(0, subprocess.run, (["sleep", "60"],)),
    "submit": lambda tool: threading.Thread(
        target=tool.keep(concurrent.futures.ThreadPoolExecutor(1)).submit, args=(tool,)
    ),
}


@pytest.mark.parametrize("make", LIBRARY_TARGETS.values(), ids=LIBRARY_TARGETS)
async def test_a_thread_that_the_runs_code_starts_takes_part_whatever_it_executes(make):
    tool, made = GroupThread(), []

    async def agent():
        made.append(make(tool))
        made[0].start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    receipt = await handle.stop("kill")
    assert receipt.in_flight
    tool.release.set()  # in case that only this ends it
    assert (await handle.outcome()).status == "stopped"
    await until(lambda: not made[0].is_alive())
    tool.close()


async def test_cancel_ends_the_task_that_a_thread_runs_to_its_end(monkeypatch):
    began, cleaned, ended = threading.Event(), [], []

    async def work():
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def agent():
        threading.Thread(target=asyncio.run, args=(work(),)).start()
        await asyncio.sleep(60)

    monkeypatch.setattr(threading, "excepthook", lambda args: ended.append(args.exc_type))
    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, cleaned, ended) == ("stopped", "cancel", [True], [])


async def test_a_cancel_of_its_own_in_a_thread_is_told_as_ever(monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))

    def cancelled():
        raise asyncio.CancelledError

    async def agent():
        thread = threading.Thread(target=cancelled)
        thread.start()
        await stoppable.to_thread(thread.join)

    await (await stoppable.spawn(agent)).result()
    assert told == [asyncio.CancelledError]


async def test_a_thread_that_a_library_starts_takes_part_if_it_was_given_work_of_the_user(installed):
    tool, event = Tool(), threading.Event()

    async def agent():
        installed.start(installed.call, event.wait, 30)  # the library's own
        installed.start(installed.call, functools.partial(tool))
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(tool.began.is_set)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("thread:by a library",)
    await until(lambda: handle.run.body_end is not None)
    assert handle.status == "stopping"
    tool.release.set()
    assert (await handle.outcome()).status == "stopped"
    assert handle.run.receipt.library_threads == ("by a library (an_installed_module)",)
    event.set()


async def test_who_starts_a_thread_is_seen_through_a_library_that_wraps_its_start(installed, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", installed.start_wrapper(threading.Thread.start))
    event = threading.Event()

    async def agent():
        threading.Thread(target=event.wait, args=(30,), name="by me").start()
        installed.start(event.wait, 30)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    receipt = await handle.stop("immediate")
    event.set()
    await handle.outcome()
    assert receipt.in_flight == ("thread:by me",)


@pytest.mark.parametrize("by", ["target", "function"])
async def test_a_loop_that_runs_for_ever_on_a_thread_outlives_the_run_that_started_it(by):
    loops = []

    def serve():
        loops[0].run_forever()

    def loop():
        """A part of an app, which the first of its agents to need it starts."""
        if not loops:
            loops.append(asyncio.new_event_loop())
            target = serve if by == "function" else loops[0].run_forever
            threading.Thread(target=target, name="shared loop", daemon=True).start()
        return loops[0]

    async def agent():
        for _ in range(2):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "served"), loop()))
        served.append(1)
        await asyncio.sleep(60)

    served = []
    first, second = await stoppable.spawn(agent), await stoppable.spawn(agent)
    await until(lambda: len(served) == 2)
    await first.stop("immediate")
    assert (await first.outcome()).status == "stopped"
    (name,) = first.run.receipt.library_threads
    assert name.startswith("shared loop")
    asked = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "served"), loops[0])
    assert await asyncio.wrap_future(asked) == "served"
    await second.stop("immediate")
    assert (await second.outcome()).status == "stopped"
    loops[0].call_soon_threadsafe(loops[0].stop)
    await until(lambda: not loops[0].is_running())
    loops[0].close()


async def test_the_excepthook_of_a_thread_belongs_to_the_run_and_may_start_nothing_after_the_stop(monkeypatch):
    crashed, release, begun, seen = threading.Event(), threading.Event(), [], []

    def crash():
        begun.append(1)
        raise ValueError

    def restart(_args):
        crashed.set()
        release.wait(30)
        seen.append(stoppable.current_run())
        threading.Thread(target=crash).start()

    monkeypatch.setattr(threading, "excepthook", restart)

    async def agent():
        threading.Thread(target=crash, name="crashes").start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(crashed.is_set)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("thread:crashes",)
    await until(lambda: handle.run.body_end is not None)
    assert handle.status == "stopping"
    release.set()
    assert (await handle.outcome()).status == "stopped"
    assert (begun, seen) == ([1], [handle.run])

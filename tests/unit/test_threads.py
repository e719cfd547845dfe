"""Threads that see the token: to_thread and bind."""

import asyncio
import concurrent.futures
import contextvars
import queue
import re
import subprocess
import sys
import textwrap
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable._core.node import Sink


async def test_a_call_on_a_thread_sees_the_token_and_its_answer_is_kept():
    started = threading.Event()
    seen = []

    def tool():
        started.set()
        while not stoppable.should_stop():
            threading.Event().wait(0.001)
        seen.append(stoppable.current_run().name)
        return "answer"

    async def agent():
        stoppable.set_partial(await stoppable.to_thread(tool))
        stoppable.check()

    handle = await stoppable.spawn(agent)
    await until(started.is_set)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, outcome.rung) == ("stopped", "answer", "signal")
    assert seen == ["agent"]


async def test_a_thread_that_a_cancel_left_behind_keeps_the_run_stopping_until_it_returns():
    started, release = threading.Event(), threading.Event()

    def tool():
        started.set()
        release.wait(60)

    async def agent():
        await stoppable.to_thread(tool)

    handle = await stoppable.spawn(agent)
    await until(started.is_set)
    await handle.stop("immediate")
    while handle.run.body_end is None:
        await asyncio.sleep(0.001)
    assert handle.status == "stopping"
    release.set()
    assert (await handle.outcome()).status == "stopped"


async def test_a_thread_that_never_returns_makes_the_run_lost_and_the_receipt_names_it(clock):
    started, release = threading.Event(), threading.Event()

    def stuck():
        started.set()
        release.wait(60)
        with pytest.raises(stoppable.AgentStopped):
            stoppable.check()

    async def agent():
        await stoppable.to_thread(stuck)

    handle = await stoppable.spawn(agent)
    await until(started.is_set)
    await handle.stop()
    clock.advance(11)
    await until(lambda: handle.run.body_end is not None)  # the task has gone, the thread has not
    clock.advance(7)
    assert (await handle.outcome()).status == "lost"
    (abandoned,) = [node.name for node in handle.run.receipt.entries if node.kind == "participant"]
    assert "stoppable-thread" in abandoned
    assert "test_threads.py" in abandoned
    release.set()


async def test_an_agent_blocked_on_a_lock_is_lost_within_the_total_and_the_receipt_names_it_with_its_stack(clock):
    lock, began = threading.Lock(), []
    lock.acquire()

    def wait_for_ever():
        began.append(True)  # an Event has frames of its own, which the receipt would name
        lock.acquire()

    def agent():
        with stoppable.boundary("tool", "locked"):
            wait_for_ever()

    handle = await stoppable.spawn(agent)
    await until(lambda: began)
    receipt = await handle.stop()
    assert receipt.in_flight == ("tool:locked",)
    clock.advance(17.9)
    await asyncio.sleep(0)
    assert handle.status == "stopping"
    clock.advance(0.1)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("lost", "lost", False)
    nodes = {node.kind: node for node in handle.run.receipt.entries}
    assert {node.fate for node in nodes.values()} == {"abandoned", "lost"}
    assert re.fullmatch(r"test_threads\.py:\d+ in wait_for_ever \(thread stoppable agent\)", nodes["participant"].name)
    innermost, outer = nodes["participant"].stack
    assert innermost.startswith(f"{__file__}:")
    assert innermost.endswith(" in wait_for_ever")
    assert outer.endswith(" in agent")
    lock.release()


@pytest.mark.parametrize("hang", ["lock.acquire()", "time.sleep(60)"])
def test_a_thread_that_hangs_for_ever_holds_up_neither_the_loop_nor_the_process(hang):
    """On the real clock, with a ladder of 0.4 seconds: the run is lost, others run on, and everything exits at once."""
    source = f"""
        import asyncio, threading, time, stoppable
        lock, inside = threading.Lock(), threading.Event()
        lock.acquire()

        def hang():
            with stoppable.boundary("tool"):
                inside.set()
                {hang}

        async def main():
            policy = stoppable.Policy(grace=0.1, interrupt=0.1, cancel=0.1, kill=0.1)
            async with stoppable.open_run("root", policy=policy):
                handle = await stoppable.spawn(hang)
                while not inside.is_set():
                    await asyncio.sleep(0.001)
                began = time.monotonic()
                await handle.stop()
                outcome = await handle.outcome()
                took = time.monotonic() - began
                (stuck,) = [node.name for node in handle.run.receipt.entries if node.kind == "participant"]
                print(outcome.status, 0.3 < took < 20, " in hang" in stuck)
                print(await (await stoppable.spawn(asyncio.sleep, 0, "went on")).result())
            return time.monotonic()

        print(time.monotonic() - asyncio.run(main()) < 20)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout == "lost True True\nwent on\nTrue\n", done.stderr


async def test_a_call_on_a_thread_after_the_stop_does_not_begin():
    async def agent():
        stoppable.current_run().stop("cooperative")
        await stoppable.to_thread(pytest.fail, "never called")

    assert (await (await stoppable.spawn(agent)).outcome()).status == "stopped"


async def test_a_foreign_thread_does_not_pass_for_the_task_that_waits_for_it_in_mid_step():
    """G8: with the run's context, as asyncio.to_thread takes it along, and the task still the loop's current one."""
    holders = []

    def tool():
        with stoppable.boundary("tool", "on a thread") as entry:
            holders.append(entry.holder)

    async with stoppable.open_run("run") as run:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(tool,), name="foreign")
        thread.start()
        thread.join(15)
        with stoppable.boundary("tool", "in the task") as entry:
            assert entry.holder is run.main
    assert holders[0] is not run.main
    assert holders[0].describe() == "thread foreign"


async def test_a_thread_that_hangs_in_a_library_is_named_by_the_line_that_called_it(clock):
    queues, began = queue.Queue(), threading.Event()

    def agent():
        began.set()
        queues.get()

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    participant = handle.run.main
    await until(lambda: "queue.get" in participant.describe())
    assert re.match(r"test_threads\.py:\d+ in agent, inside queue\.get \(thread ", participant.describe())
    queues.put(None)
    await handle.outcome()


async def test_a_task_of_a_foreign_loop_does_not_pass_for_the_one_that_waits_for_it():
    """G8: the task is the current one of its own loop, in mid-step, while another thread's loop executes another."""
    holders = []

    async def tool():
        async with stoppable.boundary("tool", "in another loop") as entry:
            holders.append(entry.holder)

    async with stoppable.open_run("run") as run:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(asyncio.run, tool()))
        thread.start()
        thread.join(15)
        assert holders[0] is not run.main


async def test_errors_and_context_cross_the_thread():
    variable = contextvars.ContextVar("variable")
    variable.set("set by the caller")
    assert await stoppable.to_thread(variable.get) == "set by the caller"
    with pytest.raises(ZeroDivisionError):
        await stoppable.to_thread(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await stoppable.to_thread(next, iter(()))


async def test_a_stop_raised_on_the_thread_stops_the_run():
    def tool():
        stoppable.current_run().stop("cooperative")
        with stoppable.boundary("tool"):
            pytest.fail("never entered")

    async def agent():
        await stoppable.to_thread(tool)

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, outcome.clean) == ("stopped", True)


async def test_a_bound_function_takes_the_run_to_a_foreign_executor():
    with concurrent.futures.ThreadPoolExecutor() as foreign:

        async def agent():
            loop = asyncio.get_running_loop()
            names = [loop.run_in_executor(foreign, stoppable.bind(lambda: stoppable.current_run().name)) for _ in "ab"]
            return [await name for name in names]

        assert await (await stoppable.spawn(agent)).result() == ["agent", "agent"]


async def test_a_bound_function_called_after_the_stop_does_nothing():
    bound = []

    async def agent():
        bound.append(stoppable.bind(lambda: pytest.fail("never called")))
        await stoppable.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: bound)
    await handle.stop()
    await handle.outcome()
    with pytest.raises(stoppable.AgentStopped):
        bound[0]()


def test_binding_outside_a_run_is_the_function_itself():
    assert stoppable.bind(print) is print
    with pytest.raises(stoppable.InvalidArgument, match="pass a function"):
        stoppable.bind(3)


def test_a_blocked_thread_holds_up_neither_asyncio_run_nor_the_exit():
    source = """
        import asyncio, time, stoppable
        async def main():
            async with asyncio.timeout(0.1):
                await stoppable.to_thread(time.sleep, 600)
        try:
            asyncio.run(main())
        except TimeoutError:
            print("returned")
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "returned\n"


async def test_blocking_code_on_a_loops_thread_is_a_run_too():
    """It cannot wait for what is left behind without blocking the loop, and says so."""
    with stoppable.open_run("on the loop") as run:
        assert stoppable.current_run() is run
    assert run.status == "completed"
    release = asyncio.Event()

    async def straggler():
        with stoppable.boundary("tool"):
            await release.wait()

    with pytest.raises(stoppable.RunStopped) as caught:
        with stoppable.open_run("on the loop") as run:
            task = asyncio.create_task(straggler())
            while not run.members:
                await asyncio.sleep(0)
            run.stop("cooperative")
            stoppable.check()
    assert caught.value.outcome.status == "stopping"
    release.set()
    await task
    await asyncio.sleep(0)
    assert run.status == "stopped"


def test_threads_work_in_a_forked_child():
    source = """
        import asyncio, os, stoppable
        asyncio.run(stoppable.to_thread(int))
        child = os.fork()
        if child == 0:
            asyncio.run(stoppable.to_thread(int))
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "7\n"


def test_runs_work_in_a_child_that_was_forked_while_another_thread_was_at_the_gate():
    source = """
        import os, signal, threading, stoppable
        from stoppable._core.participants import lock
        held = threading.Event()
        def hold():
            with lock:
                held.set()
                threading.Event().wait(0.5)  # the fork comes meanwhile, or waits for it
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a child that hangs would outlive the test
            try:
                with stoppable.open_run("in the child") as run:
                    run.stop()
                    stoppable.check()
            except stoppable.RunStopped:
                os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "7\n"


async def test_the_sink_is_told_when_nothing_is_left_of_a_lost_run():
    died = []

    class Told(Sink):
        def died(self, run):
            died.append(run)

    go = threading.Event()
    policy = stoppable.Policy(grace=0, interrupt=0, cancel=0, kill=0.01)
    async with stoppable.open_run("policy", policy=policy):
        handle = await stoppable.spawn(go.wait, 30)
        handle.run.sink = Told()
        await until(lambda: handle.status == "running")
        handle.run.stop()
        assert (await handle.outcome()).status == "lost"
        assert died == []
        go.set()
        await until(lambda: died)
    assert set(died) == {handle.run}
    assert handle.status == "lost"

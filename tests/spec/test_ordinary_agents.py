"""What ordinary agents do: habits that a stop must survive (each was once answered with less than the truth)."""

import asyncio
import contextvars
import gc
import multiprocessing
import os
import signal
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.waiting import until, wait_until

import stoppable
from stoppable._core import boundary as boundaries
from stoppable._engine.isolation import host


@pytest.fixture
def may_warn_again(monkeypatch):
    monkeypatch.setattr(boundaries, "_warned", False)


# An agent process that has not begun


async def test_a_stop_while_a_worker_process_starts_is_a_stop(tmp_path):
    handle = await stoppable.spawn(wait_until, tmp_path.joinpath("never").exists, isolation="process")
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result) == ("stopped", None)
    with pytest.raises(stoppable.RunStopped):
        await handle.result()


async def leaves_a_task(flag):
    async def background():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(60)

    left.append(asyncio.create_task(background()))
    await asyncio.sleep(0)
    Path(flag).touch()
    await stoppable.sleep(60)


left = []


async def test_a_worker_process_that_cuts_a_task_at_its_exit_is_not_clean(tmp_path):
    handle = await stoppable.spawn(leaves_a_task, str(tmp_path / "there"), isolation="process")
    await until((tmp_path / "there").exists)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.clean) == ("stopped", False)


async def test_a_worker_process_that_somebody_kills_leaves_nobody_who_knows(tmp_path):
    handle = await stoppable.spawn(leaves_a_task, str(tmp_path / "there"), isolation="process")
    await until((tmp_path / "there").exists)
    [worker] = host.live
    os.kill(worker._reaped.reaper.pid, signal.SIGKILL)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.clean) == ("failed", None)


# Task factories


def awaiting_factory(loop, coro, **options):
    """Awaits the coroutine it is given, as tracing libraries do."""

    async def wrapped():
        return await coro

    return asyncio.Task(wrapped(), loop=loop, **options)


async def test_a_task_factory_that_awaits_the_coroutine_runs_an_agent_as_any_other():
    asyncio.get_running_loop().set_task_factory(awaiting_factory)

    async def agent():
        return "value"

    async def waits():
        await stoppable.sleep(60)

    assert await (await stoppable.spawn(agent)).result() == "value"
    handle = await stoppable.spawn(waits)
    await until(lambda: handle.status == "running")
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"


async def test_a_task_that_is_cancelled_before_its_first_step_ends_its_run_under_a_factory_too():
    asyncio.get_running_loop().set_task_factory(awaiting_factory)

    async def agent():
        raise AssertionError

    handle = await stoppable.spawn(agent)
    handle._carrier.cancel()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.reason.kind) == ("stopped", "external")


# Delivery by observation


async def test_a_parent_that_sees_its_child_stopped_by_its_own_stop_was_told():
    async def child():
        await stoppable.sleep(60)

    async def parent():
        return (await (await stoppable.spawn(child)).outcome()).status

    handle = await stoppable.spawn(parent)
    await until(lambda: handle.run.first_child is not None and handle.run.first_child.status == "running")
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result, handle.run.receipt.too_late) == ("stopped", "stopped", False)


async def test_a_parent_that_sees_its_child_stopped_by_its_own_limit_was_told():
    async def child():
        while True:
            with stoppable.boundary("llm"):
                await asyncio.sleep(0)

    with pytest.raises(stoppable.RunStopped) as stopped:
        async with stoppable.open_run("r", limits=stoppable.Limits(boundaries={"llm": 3})):
            await (await stoppable.spawn(child)).outcome()
    assert stopped.value.outcome.reason.kind == "limit"


async def test_a_parent_that_stops_a_child_itself_was_told_of_nothing():
    async def child():
        await stoppable.sleep(60)

    async def parent():
        handle = await stoppable.spawn(child)
        await handle.stop()
        return (await handle.outcome()).status

    assert (await (await stoppable.spawn(parent)).outcome()).status == "completed"


# Who takes part


async def test_a_task_that_should_stop_told_to_stop_takes_part():
    told, release, log = asyncio.Event(), asyncio.Event(), []

    async def heartbeat():
        while not stoppable.should_stop():
            await asyncio.sleep(0)
        told.set()
        await release.wait()
        log.append("ended")

    async def work():
        while True:
            with stoppable.boundary("llm"):
                await asyncio.sleep(0)

    async def agent():
        await asyncio.gather(heartbeat(), work())

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop()
    await told.wait()
    await until(lambda: handle.run.body_end)
    assert handle.status == "stopping"
    release.set()
    assert (await handle.outcome()).status == "stopped"
    assert log == ["ended"]


async def test_a_thread_that_should_stop_told_to_stop_takes_part_until_its_call_returns():
    """On a pool that copies the context and says nothing: the run ends with the call, though the thread lives on."""
    began, told, release = threading.Event(), threading.Event(), threading.Event()

    def work():
        began.set()
        while not stoppable.should_stop():
            pass
        assert stoppable.should_stop()  # asked again, it is still one part
        told.set()
        release.wait(30)

    async def agent():
        copied = contextvars.copy_context()
        pool.submit(copied.run, work)
        del copied
        while not told.is_set():
            await asyncio.sleep(0)
        stoppable.check()

    with ThreadPoolExecutor(1) as pool:
        handle = await stoppable.spawn(agent)
        await until(began.is_set)
        await handle.stop()
        await until(told.is_set)
        await until(lambda: handle.run.body_end)
        assert handle.status == "stopping"
        release.set()
        await until(lambda: gc.collect() >= 0 and handle.status == "stopped")
        assert handle.run.outcome.clean


async def test_a_call_in_the_executor_of_the_loop_that_was_told_to_stop_takes_part_until_it_returns():
    began, told = threading.Event(), threading.Event()

    def work():
        began.set()
        while not stoppable.should_stop():
            pass
        told.set()

    async def agent():
        await asyncio.get_running_loop().run_in_executor(None, work)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, told.is_set()) == ("stopped", True)


@pytest.mark.usefixtures("uninstrumented")
async def test_should_stop_and_check_on_a_thread_that_lost_its_run_warn(may_warn_again):
    def work(look):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            look()
        return [str(warning.message) for warning in caught]

    async def agent():
        with ThreadPoolExecutor(1) as pool:
            first = await asyncio.wrap_future(pool.submit(work, stoppable.check))
            boundaries._warned = False
            return first + await asyncio.wrap_future(pool.submit(work, stoppable.should_stop))

    first, second = await (await stoppable.spawn(agent)).result()
    assert first.startswith("check() was called on a thread that belongs to no run")
    assert second.startswith("should_stop() was called on a thread that belongs to no run")


# Forks


def in_a_fork(_):
    boundaries._warned = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with stoppable.boundary("tool"):
            stoppable.append_partial("x" * 100_000)
    return stoppable.current_run() is None, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("instrumented", [False, True])
async def test_a_fork_has_no_run_and_says_so(instrumented):
    (stoppable.instrument if instrumented else stoppable.uninstrument)()

    async def agent():
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            return await asyncio.wrap_future(pool.submit(in_a_fork, None))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 on: a fork beside threads
        handle = await stoppable.spawn(agent)
        is_outside, [told] = await handle.result()
    assert is_outside
    assert told.startswith("boundary 'tool' was called in a process that was forked inside a run")
    assert handle.run.partial is None


def checks_in_a_fork(_):
    boundaries._warned = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = [stoppable.should_stop() for _ in range(3)]
    return answers, [str(warning.message) for warning in caught]


async def test_a_fork_that_asks_whether_to_stop_is_told_that_it_has_no_run():
    async def agent():
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            return await asyncio.wrap_future(pool.submit(checks_in_a_fork, None))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 on: a fork beside threads
        answers, [told] = await (await stoppable.spawn(agent)).result()
    assert answers == [False, False, False]
    assert told.startswith("should_stop() was called in a process that was forked inside a run")


@pytest.mark.parametrize("instrumented", [False, True])
def test_so_does_a_bare_fork(may_warn_again, instrumented):
    (stoppable.instrument if instrumented else stoppable.uninstrument)()
    read, write = os.pipe()
    with stoppable.open_run("parent"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if pid == 0:
            try:
                is_outside, told = in_a_fork(None)
                os.write(write, b"told" if is_outside and len(told) == 1 else b"silent")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    assert os.read(read, 6) == b"told"
    os.close(read)
    os.close(write)


def forks_in_a_worker():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        return all(outside for outside, _ in pool.map(in_a_fork, range(64)))


async def test_forks_in_a_worker_process_leave_its_line_alone():
    outcome = await (await stoppable.spawn(forks_in_a_worker, isolation="process")).outcome()
    assert (outcome.status, outcome.result, outcome.partial) == ("completed", True, None)


def test_a_fork_outside_a_run_is_as_it_was(may_warn_again):
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            with stoppable.boundary("tool"):  # in a fork of a run it would warn
                os.write(write, b"silent" if stoppable.current_run() is None and not boundaries._warned else b"warned")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 6) == b"silent"
    os.close(read)
    os.close(write)


# Limits


async def test_a_limit_of_sub_runs_counts_those_that_are_opened():
    opened = 0
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("r", limits=stoppable.Limits(boundaries={"subrun": 3})):
            for _ in range(10):
                async with stoppable.open_run("child"):
                    opened += 1
    assert opened == 3


def tools(path, count):
    entered = 0
    try:
        for _ in range(count):
            with stoppable.boundary("tool"):
                entered += 1
    finally:
        Path(path).write_text(str(entered))


async def test_a_limit_of_boundaries_is_kept_in_a_worker_process(tmp_path):
    path = tmp_path / "entered"
    with pytest.raises(stoppable.RunStopped) as stopped:
        async with stoppable.open_run("r", limits=stoppable.Limits(boundaries={"tool": 3})) as run:
            with stoppable.boundary("tool"):
                pass
            outcome = await (await stoppable.spawn(tools, str(path), 100_000, isolation="process")).outcome()
    assert (outcome.status, path.read_text()) == ("stopped", "2")
    assert run.status == "stopped"
    assert (stopped.value.outcome.reason.kind, stopped.value.outcome.reason.message) == (
        "limit",
        "limit of 3 tool boundaries",
    )


async def sub_runs(count):
    @stoppable.agent
    async def child():
        stoppable.append_partial("x")

    for _ in range(count):
        await child()
        stoppable.append_partial("x")


async def test_a_limit_of_sub_runs_is_kept_in_a_worker_process():
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("r", limits=stoppable.Limits(boundaries={"subrun": 3, "llm": 9})):
            async with stoppable.open_run("inner", limits=stoppable.Limits(boundaries={"subrun": 9})):
                handle = await stoppable.spawn(sub_runs, 50, isolation="process")
                outcome = await handle.outcome()
    assert (outcome.status, outcome.partial) == ("stopped", "x")


# Generators


async def test_a_half_read_generator_agent_that_is_kept_ends_with_its_parent():
    kept, runs = [], []

    @stoppable.agent
    async def search():
        runs.append(stoppable.current_run())
        for number in range(100):
            yield number

    async def agent():
        kept.append(search())
        return await anext(kept[0])

    assert await (await stoppable.spawn(agent)).result() == 0
    assert [(run.outcome.status, run.outcome.reason.kind) for run in runs] == [("stopped", "disconnect")]
    await kept[0].aclose()


async def test_a_generator_agent_called_in_a_run_raises_its_own_error():
    @stoppable.agent
    async def search():
        yield 1
        raise KeyError("mine")

    async def agent():
        with pytest.raises(KeyError, match="mine"):
            async for _ in search():
                pass
        return "went on"

    assert await (await stoppable.spawn(agent)).result() == "went on"


# Cancels


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_timeout_around_a_body_that_took_our_cancel_back_is_a_timeout(blocking):
    async def body(run):
        run.stop("immediate")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
        deadline.reschedule(asyncio.get_running_loop().time() + 0.05)  # not before our cancel has come
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as deadline:
            if blocking:
                with stoppable.open_run("r") as run:
                    await body(run)
            else:
                async with stoppable.open_run("r") as run:
                    await body(run)
    assert asyncio.current_task().cancelling() == 0
    assert run.token.stopped


# Tasks that were left behind


@pytest.mark.parametrize("others", [0, 300])
async def test_a_task_that_was_left_behind_takes_part(others):
    kept, log = [], []
    crowd = [asyncio.create_task(asyncio.sleep(60)) for _ in range(others)]

    async def background():
        try:
            await asyncio.sleep(60)
        finally:
            log.append("ended")

    async def agent():
        kept.append(asyncio.create_task(background()))
        with stoppable.detached():
            kept.append(asyncio.create_task(asyncio.sleep(0)))
        await stoppable.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: kept)
    await handle.stop()
    await until(lambda: handle.run.body_end)
    assert handle.status == "stopping"
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.clean, log) == ("stopped", None, ["ended"])
    for task in crowd:
        task.cancel()


async def test_a_task_that_was_left_behind_is_cancelled_with_its_run():
    """It met no boundary, so CANCEL did not know it: it gets its cancel when the body has ended, and not at KILL."""
    log = []

    async def background():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            log.append("cancelled")
            await asyncio.sleep(0.01)  # a clean-up that a second cancel would cut
            log.append("cleaned up")

    async def agent():
        await asyncio.gather(background(), asyncio.create_task(background()), asyncio.sleep(60))

    async def fire_and_forget():
        asyncio.current_task().leftover = asyncio.create_task(background())
        await asyncio.sleep(60)

    for body, count in ((agent, 2), (fire_and_forget, 1)):
        log.clear()
        handle = await stoppable.spawn(body)
        await asyncio.sleep(0.01)
        await handle.stop("immediate")
        outcome = await handle.outcome()
        assert (outcome.status, outcome.rung) == ("stopped", "cancel")
        assert sorted(log) == sorted(["cancelled", "cleaned up"] * count)


async def test_a_sibling_that_only_asks_now_and_then_holds_the_end_of_its_run():
    asks, effects = asyncio.Event(), []

    async def sibling():
        while True:
            await asks.wait()
            if stoppable.should_stop():
                return
            effects.append(1)
            asks.clear()

    async def agent():
        await asyncio.gather(sibling(), stoppable.sleep(60))

    handle = await stoppable.spawn(agent)
    asks.set()
    await until(lambda: effects)
    await handle.stop()
    await until(lambda: handle.run.body_end)
    assert handle.status == "stopping", "the sibling is alive"
    asks.set()
    assert ((await handle.outcome()).status, len(effects)) == ("stopped", 1)


async def test_the_tasks_of_children_are_their_own():
    async def child():
        await stoppable.sleep(60)

    async def agent():
        for handle in [await stoppable.spawn(child) for _ in range(3)]:
            await handle.result()

    handle = await stoppable.spawn(agent)
    await until(lambda: len(handle.run.list_children()) == 3)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "signal", True)

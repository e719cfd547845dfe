"""G9: we consume only the cancels we issued, on every way out; every way out leads to a terminal status."""

import asyncio
import subprocess
import sys
import threading

import pytest
from tests.waiting import until, wait_until

import stoppable
from stoppable._engine.processes.group import live
from stoppable.testing.scripts import Effect, FileProbe, Stubborn


async def hang():
    await asyncio.sleep(60)


async def test_a_timeout_around_a_run_is_a_timeout_at_once():
    async with stoppable.open_run("outer"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                async with stoppable.open_run("inner") as inner:
                    await hang()
        assert (inner.status, inner.outcome.reason.kind) == ("stopped", "external")


async def test_a_timeout_around_a_called_agent_is_a_timeout_at_once():
    async def agent():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await stoppable.call(hang)
        return "went on"

    assert await (await stoppable.spawn(agent)).result() == "went on"


async def test_a_timeout_around_a_generator_agent_is_a_timeout_at_once_and_its_clean_up_runs():
    runs, notes = [], []
    release = asyncio.Event()

    @stoppable.agent
    async def tokens():
        runs.append(stoppable.current_run())
        try:
            yield "a"
            await hang()
        finally:
            await release.wait()
            notes.append("cleaned")

    async def agent():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as deadline:
                async for item in tokens():
                    notes.append(item)
                    deadline.reschedule(asyncio.get_running_loop().time())
        notes.append("went on")
        assert runs[0].status == "stopping"
        release.set()

    handle = await stoppable.spawn(agent)
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "completed"
    assert notes == ["a", "went on", "cleaned"]
    assert (runs[0].status, runs[0].outcome.reason.kind, runs[0].outcome.clean) == ("stopped", "external", None)


async def test_our_own_cancel_waits_for_the_clean_up_of_a_generator_agent():
    notes = []

    @stoppable.agent
    async def tokens():
        try:
            yield "a"
            notes.append("b")
            await hang()
        finally:
            await asyncio.sleep(0.01)
            notes.append("the generator")

    async def agent():
        try:
            async for item in tokens():
                notes.append(item)
        finally:
            notes.append("its reader")

    handle = await stoppable.spawn(agent)
    while notes != ["a", "b"]:
        await asyncio.sleep(0)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.clean) == ("stopped", None)
    assert notes[2:] == ["the generator", "its reader"]


async def test_somebody_elses_cancel_leaves_the_task_cancelled():
    runs = []

    async def work():
        async with stoppable.open_run("work") as run:
            runs.append(run)
            await hang()

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert (runs[0].status, runs[0].outcome.reason.kind) == ("stopped", "external")


async def test_somebody_elses_cancel_wins_over_ours_and_the_first_reason_stays():
    runs = []

    async def work():
        async with stoppable.open_run("work") as run:
            runs.append(run)
            await hang()

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    runs[0].stop("immediate", "user pressed")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert (runs[0].status, runs[0].outcome.reason.message) == ("stopped", "user pressed")


async def test_our_cancel_leaves_nothing_behind_in_the_callers_task():
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("work") as run:
            run.stop("immediate")
            await hang()
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0.01)


async def test_our_cancel_that_the_body_swallowed_is_paid_back():
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("work") as run:
            run.stop("immediate")
            try:
                await hang()
            except asyncio.CancelledError:
                pass
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0.01)


async def test_a_cancel_issued_just_before_the_body_returns_does_not_hit_the_callers_next_await():
    """The loop is blocked while CANCEL is queued; the body returns in the step in which the cancel is issued."""
    for _ in range(20):
        task = asyncio.current_task()
        with pytest.raises(stoppable.RunStopped):
            async with stoppable.open_run("work") as run:
                run.stop("cooperative")
                # What the CANCEL rung does on the loop's thread, at the worst moment: nothing is awaited afterwards.
                run.climb(stoppable.Rung.INTERRUPT)
                run.main._cancel(stoppable.Rung.CANCEL, run)
        assert task.cancelling() == 0
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)


async def test_a_foreign_cancel_that_comes_while_ours_is_absorbed_is_not_lost():
    async def work():
        async with stoppable.open_run("work") as run:
            run.stop("cooperative")
            run.climb(stoppable.Rung.INTERRUPT)
            run.main._cancel(stoppable.Rung.CANCEL, run)
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
            return

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_foreign_cancel_while_waiting_for_stragglers_propagates_at_once_and_the_ladder_finishes(clock):
    release = asyncio.Event()
    runs = []

    async def straggler():
        with stoppable.boundary("tool", "straggler"):
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass

    async def work():
        async with stoppable.open_run("work") as run:
            runs.append(run)
            straggling = asyncio.create_task(straggler())
            await asyncio.sleep(0)
            run.stop()
            stoppable.check()
        return straggling

    task = asyncio.create_task(work())
    await until(lambda: runs and runs[0].body_end is not None)
    assert runs[0].status == "stopping"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runs[0].status == "stopping"
    release.set()
    await until(lambda: runs[0].status == "stopped")


async def test_an_outer_stop_that_cancels_while_an_inner_run_waits_for_stragglers_passes_on(clock):
    release, inners = asyncio.Event(), []

    async def straggler():
        with stoppable.boundary("tool", "straggler"):
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass

    async def inner():
        inners.append(stoppable.current_run())
        task = asyncio.create_task(straggler())
        await asyncio.sleep(0)
        stoppable.current_run().stop()
        stoppable.check()
        return task

    async def outer():
        await stoppable.call(inner)

    handle = await stoppable.spawn(outer)
    await until(lambda: inners and inners[0].body_end is not None)
    await handle.stop("immediate")
    await asyncio.sleep(0.01)
    assert handle.status == "stopping"
    release.set()
    assert (await handle.outcome()).status == "stopped"


async def test_a_task_cancelled_before_its_first_step_ends_its_run():
    ran = []

    async def body():
        ran.append(True)

    handle = await stoppable.spawn(body)
    handle._carrier.cancel()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.reason.kind) == ("stopped", "external")
    assert not ran


async def test_a_task_that_is_cancelled_as_its_run_opens_was_cancelled_from_outside():
    async def caller():
        asyncio.current_task().cancel()  # arrives at the first await, inside the run
        async with stoppable.open_run("work") as run:
            runs.append(run)
            await asyncio.sleep(60)

    runs = []
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(caller())
    assert (runs[0].status, runs[0].outcome.reason.kind) == ("stopped", "external")


def test_a_generator_that_is_closed_was_stopped_by_its_consumer():
    with pytest.raises(GeneratorExit):
        with stoppable.open_run("work") as run:
            raise GeneratorExit
    assert (run.status, run.outcome.reason.kind) == ("stopped", "disconnect")


def test_ctrl_c_passes_through_a_blocking_run_and_stops_it():
    """In a process of its own: the tests' own handler may be another one."""
    script = """
import signal, stoppable
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with stoppable.open_run("work") as run:
        signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print(run.status, run.outcome.reason.kind)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["stopped", "shutdown"]


async def test_a_cancelled_waiter_does_not_stop_what_it_waits_for():
    release = asyncio.Event()

    async def agent():
        await release.wait()
        return "value"

    handle = await stoppable.spawn(agent)
    waiter = asyncio.create_task(handle.result())
    await asyncio.sleep(0.01)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    release.set()
    assert await handle.result() == "value"


async def test_a_run_inside_the_clean_up_of_a_cancelled_task_keeps_that_cancel():
    inner = []

    async def work():
        try:
            await hang()
        finally:
            with pytest.raises(stoppable.RunStopped):
                async with stoppable.open_run("clean-up") as run:
                    inner.append(run)
                    run.stop("immediate")
                    await hang()

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert inner[0].outcome.reason.kind == "user"


@pytest.mark.parametrize("step", [Effect("work"), Stubborn("work")], ids=["polite", "stubborn"])
async def test_somebody_elses_cancel_passes_a_command_at_once_and_ends_it(tmp_path, clock, step):
    """Also if the process does not die of TERM: it dies of KILL, in its own time."""
    probe = FileProbe(tmp_path)

    async def agent():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as timeout:
                asyncio.get_running_loop().call_later(0.001, _expire_when_noted, probe, timeout)
                await stoppable.run_process(probe.command(step))
        assert live or isinstance(step, Effect), "it did not wait for the end of the process"
        return asyncio.current_task().cancelling()

    assert await (await stoppable.spawn(agent)).result() == 0
    while live:
        clock.advance(1)
        await asyncio.sleep(0.001)
    assert "leave work" not in probe.notes


def _expire_when_noted(probe, timeout):
    loop = asyncio.get_running_loop()
    if probe.notes:
        timeout.reschedule(loop.time())
    else:
        loop.call_later(0.001, _expire_when_noted, probe, timeout)


async def test_a_task_of_another_loop_that_calls_a_bound_function_is_not_cancelled():
    """The call takes part in the run; the task that makes it does not."""
    bound, began, release, end = [], threading.Event(), threading.Event(), []

    def look():
        with stoppable.boundary("tool"):
            began.set()
            assert release.wait(30)

    async def agent():
        bound.append(stoppable.bind(look))
        await asyncio.sleep(60)

    async def server():
        bound[0]()
        await asyncio.sleep(0.05)  # a cancel that was sent to this task would arrive here
        end.append("goes on")

    handle = await stoppable.spawn(agent)
    await until(lambda: bound)
    thread = threading.Thread(target=asyncio.run, args=(server(),))
    thread.start()
    await until(began.is_set)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("tool",)
    await until(lambda: handle.run.rung == "cancel")
    release.set()
    await asyncio.to_thread(thread.join)
    outcome = await handle.outcome()
    assert (outcome.status, end) == ("stopped", ["goes on"])


async def test_two_cancels_of_one_stop_that_meet_a_wait_that_is_over_are_not_taken_for_foreign_ones():
    ready, is_open = asyncio.get_running_loop().create_future(), asyncio.Event()
    runs = []

    async def work():
        async with stoppable.open_run("work") as run:
            runs.append(run)
            is_open.set()
            await ready

    working = asyncio.create_task(work())
    await is_open.wait()
    await asyncio.sleep(0)  # it waits now
    runs[0].stop("kill")
    wait_until(lambda: runs[0].rung == "kill")
    threading.Event().wait(0.3)  # both cancels wait for the loop
    ready.set_result(None)
    with pytest.raises(stoppable.RunStopped):
        await working
    assert runs[0].outcome.status == "stopped"
    assert working.cancelling() == 0

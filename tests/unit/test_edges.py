"""Whose cancel it is, and what becomes of a body that is cut: the edge where several of them meet."""

import asyncio
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable import sync
from stoppable._core.values import Rung


async def child_of(handle):
    await until(handle.run.list_children)
    return handle.run.list_children()[0]


# Ours, or somebody else's (G9)


async def _fails():
    await asyncio.sleep(0)
    raise ValueError


async def _leaves_a_count_behind():
    """Before 3.13 a TaskGroup whose child fails while it waits leaves the count of cancels at one."""
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(_fails())


async def test_a_count_that_a_task_group_left_behind_is_nobodys_cancel():
    """G4: a stop of the child ends the child, and the parent goes on."""
    waits = asyncio.Event()

    @stoppable.agent
    async def child():
        await _leaves_a_count_behind()
        waits.set()
        await asyncio.sleep(3600)

    async def parent():
        with pytest.raises(stoppable.RunStopped):
            await child()
        return "goes on"

    handle = await stoppable.spawn(parent)
    await until(waits.is_set)
    (await child_of(handle)).stop("immediate")
    assert await handle.result() == "goes on"


async def test_a_count_left_behind_hides_no_cancel_from_outside():
    waits = asyncio.Event()

    async def job():
        async with stoppable.open_run("job") as run:
            await _leaves_a_count_behind()
            asyncio.get_running_loop().call_soon(run.stop, "immediate")
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
            waits.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(job())
    await until(waits.is_set)
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_stop_that_is_raised_while_an_outside_cancel_unwinds_does_not_hide_it():
    async def job():
        async with stoppable.open_run("job") as run:
            run.stop()
            try:
                await asyncio.sleep(3600)
            finally:
                stoppable.check()

    task = asyncio.create_task(job())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_the_same_in_a_task_of_the_run():
    async def agent():
        stoppable.current_run().stop()
        try:
            await asyncio.sleep(3600)
        finally:
            stoppable.check()

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.token.stopped)
    handle._carrier.cancel()
    assert (await handle.outcome()).status == "stopped"
    await asyncio.wait([handle._carrier])
    assert handle._carrier.cancelled()


async def test_a_kill_that_comes_while_the_edge_lets_our_cancel_in_hits_nobody_else(clock):
    async def job():
        async with stoppable.open_run("job") as run:
            asyncio.get_running_loop().call_soon(stop_now, run, "immediate")
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                stop_now(run, "kill")  # its cancel waits for this task's next step

    def stop_now(run, mode):
        run.stop(mode)
        clock.advance(0)

    with pytest.raises(stoppable.RunStopped):
        await job()
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)


async def test_a_blocking_agent_with_a_loop_of_its_own_takes_our_cancel_for_ours():
    """G4: a stop of the tool ends the tool, and its caller goes on."""
    waits = threading.Event()

    async def inner():
        with stoppable.boundary("llm"):
            waits.set()
            await asyncio.sleep(3600)

    @stoppable.agent
    def tool():
        asyncio.run(inner())

    def parent():
        with pytest.raises(stoppable.RunStopped):
            tool()
        return "goes on"

    handle = await stoppable.spawn(parent)
    await until(waits.is_set)
    (await child_of(handle)).stop("immediate")
    assert await handle.result() == "goes on"


# What was cut did not complete (G8)


async def test_a_run_that_is_no_part_of_the_stopped_one_passes_its_cancel_on():
    log = []

    async def agent():
        with stoppable.detached():
            async with stoppable.open_run("detached") as run:
                log.append(run)
                await asyncio.sleep(3600)
        log.append("worked on")

    handle = await stoppable.spawn(agent)
    await until(lambda: log)
    handle.run.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "cancel")
    [detached] = log
    assert (detached.outcome.status, detached.outcome.reason.kind) == ("stopped", "external")


async def test_a_run_of_a_clean_up_that_is_cut_at_the_end_of_its_shield_is_stopped(clock):
    log, saves = [], asyncio.Event()

    @stoppable.agent
    async def save():
        saves.set()
        await asyncio.sleep(3600)
        return "saved"

    async def agent():
        async with stoppable.shielded(0.5):
            run = stoppable.current_run()
            run.stop("immediate")
            clock.advance(0)
            assert run.rung is Rung.CANCEL  # so save() is born after it, and is told of nothing
            log.append(await save())

    handle = await stoppable.spawn(agent)
    await saves.wait()
    clock.advance(0.5)
    assert (await handle.outcome()).status == "stopped"
    assert log == []
    assert {node.name: node.fate for node in handle.run.receipt.entries}["save"] == "stopped"


@pytest.mark.parametrize("is_blocking", [False, True], ids=["async", "blocking"])
async def test_a_run_of_a_clean_up_does_not_pay_back_the_cancel_that_set_the_clean_up_off(is_blocking):
    @stoppable.agent
    async def save():
        await asyncio.sleep(0)
        return "saved"

    @stoppable.agent
    def save_blocking():
        return "saved"

    with pytest.raises(stoppable.RunStopped) as caught:
        async with stoppable.open_run("cut") as run:
            run.stop("immediate")
            try:
                await asyncio.sleep(3600)
            finally:
                async with stoppable.shielded(5):
                    stoppable.set_partial(save_blocking() if is_blocking else await save())
    outcome = caught.value.outcome
    assert (outcome.status, outcome.rung, outcome.clean, outcome.partial) == ("stopped", "cancel", None, "saved")
    assert len(run.stops()) == 1  # nobody's cancel came from outside
    assert asyncio.current_task().cancelling() == 0


async def test_a_run_of_a_clean_up_that_is_killed_alone_leaves_the_cancel_around_it_to_be_paid_back():
    born = []

    @stoppable.agent
    async def save():
        born.append(stoppable.current_run())
        born[0].stop("kill")
        await asyncio.sleep(3600)

    with pytest.raises(stoppable.RunStopped) as caught:
        async with stoppable.open_run("cut") as run:
            run.stop("immediate")
            try:
                await asyncio.sleep(3600)
            finally:
                async with stoppable.shielded(4):
                    with pytest.raises(stoppable.RunStopped):
                        await save()
    assert (caught.value.outcome.status, caught.value.outcome.rung) == ("stopped", "cancel")
    assert born[0].outcome.status == "stopped"
    assert len(run.stops()) == 1  # nobody's cancel came from outside
    assert asyncio.current_task().cancelling() == 0


async def test_a_run_of_a_clean_up_that_an_outsider_cancels_hides_neither_cancel():
    inside = asyncio.Event()

    @stoppable.agent
    async def save():
        inside.set()
        await asyncio.sleep(3600)

    async def outer():
        async with stoppable.open_run("cut") as run:
            run.stop("immediate")
            try:
                await asyncio.sleep(3600)
            finally:
                async with stoppable.shielded(5):
                    await save()

    task = asyncio.create_task(outer())
    await inside.wait()
    task.cancel("outside")
    with pytest.raises(asyncio.CancelledError, match="outside"):
        await task
    assert task.cancelling() == 1


# To be clean is to be known to be (G7)


async def test_clean_is_not_said_of_code_that_was_told_to_stop_and_then_cut(clock):
    cleans_up = asyncio.Event()

    async def agent():
        try:
            while not stoppable.should_stop():
                await asyncio.sleep(0.001)
        finally:
            cleans_up.set()
            await asyncio.sleep(3600)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    handle.run.stop()
    await cleans_up.wait()
    clock.advance(11)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "cancel", None)


async def test_clean_is_not_said_of_a_clean_up_after_an_error_that_was_cut():
    cleans_up = asyncio.Event()

    async def agent():
        try:
            raise ValueError
        finally:
            cleans_up.set()
            await asyncio.sleep(3600)

    handle = await stoppable.spawn(agent)
    await until(cleans_up.is_set)
    handle.run.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "cancel", None)


async def test_a_task_that_joined_gets_one_cancel_though_the_body_has_ended():
    log, cleans_up, told = [], asyncio.Event(), asyncio.Event()

    async def side():
        try:
            async with stoppable.shielded(0.1):
                with stoppable.boundary("tool"):
                    await told.wait()
            await asyncio.sleep(3600)
        finally:
            cleans_up.set()
            try:
                await asyncio.sleep(0.3)  # the time of the shield that was left is over by then
                log.append("cleaned up")
            except asyncio.CancelledError:
                log.append("cut")
                raise

    async def agent():
        task = asyncio.create_task(side())
        await stoppable.sleep(3600)
        await task

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    handle.run.stop("immediate")
    told.set()
    await handle.outcome()
    assert log == ["cleaned up"]


# Errors and children


async def test_the_error_of_a_body_is_kept_though_a_stop_comes_while_its_children_end(clock):
    told = asyncio.Event()

    async def child():
        try:
            await stoppable.sleep(3600)
        finally:
            async with stoppable.shielded(4):
                await told.wait()

    async def agent():
        await stoppable.spawn(child)
        await asyncio.sleep(0)
        raise ValueError("the real error")

    handle = await stoppable.spawn(agent)
    await until(lambda: (first := handle.run.first_child) is not None and first.token.stopped)
    handle.run.stop("immediate")
    clock.advance(0)
    await asyncio.sleep(0)
    told.set()
    outcome = await handle.outcome()
    assert (outcome.status, str(outcome.error), outcome.clean) == ("stopped", "the real error", False)


async def test_a_run_waits_for_what_a_blocking_child_left_behind_on_its_loop():
    """Decision 0003: otherwise a stop would answer `already_finished` while a grandchild works on."""
    goes_on = threading.Event()

    def worker():
        with stoppable.boundary("llm"):
            assert goes_on.wait(30)

    @stoppable.agent
    def helper():
        sync.spawn(worker)

    async def root():
        helper()

    handle = await stoppable.spawn(root)
    await until(lambda: handle.run.in_flight)
    await asyncio.sleep(0.05)
    assert handle.status == "running"
    goes_on.set()
    assert (await handle.outcome()).status == "completed"

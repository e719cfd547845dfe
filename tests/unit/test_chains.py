"""Agents that call agents."""

import asyncio

import pytest

import stoppable


@stoppable.agent
async def z(seen):
    while True:
        with stoppable.boundary("llm"):
            seen.append("z")
            await asyncio.sleep(0.001)


@stoppable.agent
async def y(seen, handles=None):
    if handles is not None:
        handles.append(stoppable.current_run())
    await z(seen)


async def test_a_stop_of_x_ends_x_y_and_z():
    seen = []

    @stoppable.agent
    async def x():
        await y(seen)

    handle = await stoppable.spawn(x)
    await _until(lambda: seen)
    await handle.stop(reason="enough")
    outcome = await handle.outcome()
    assert outcome.status == "stopped"
    nodes = [(node.name, node.fate) for node in handle.run.receipt.entries if node.kind == "run"]
    assert nodes == [("x", "stopped"), ("y", "stopped"), ("z", "stopped")]


async def test_a_stop_of_y_gives_x_a_run_stopped_it_may_survive():
    seen, runs = [], []

    @stoppable.agent
    async def x():
        try:
            await y(seen, runs)
        except stoppable.RunStopped as stopped:
            return f"without y: {stopped.outcome.reason.message}"

    handle = await stoppable.spawn(x)
    await _until(lambda: seen)
    runs[0].stop(reason="only y")
    assert await handle.result() == "without y: only y"


async def test_a_run_stopped_that_x_does_not_survive_makes_it_failed():
    seen, runs = [], []

    async def x():
        await y(seen, runs)

    handle = await stoppable.spawn(x)
    await _until(lambda: seen)
    runs[0].stop(reason="only y")
    outcome = await handle.outcome()
    assert outcome.status == "failed"
    assert isinstance(outcome.error, stoppable.RunStopped)
    assert outcome.error.run_id == runs[0].id


async def test_a_run_stopped_in_a_task_group_is_survived_through_spawn_and_outcome():
    async def child(number):
        await stoppable.sleep(0.01 if number != 1 else 60)
        return number

    async def parent():
        handles = [await stoppable.spawn(child, number) for number in range(3)]
        await handles[1].stop()
        return [(await handle.outcome()).status for handle in handles]

    assert await (await stoppable.spawn(parent)).result() == ["completed", "stopped", "completed"]


async def test_an_awaiter_inside_the_stopped_subtree_gets_agent_stopped():
    raised = []

    async def child():
        await stoppable.sleep(60)

    async def parent():
        handle = await stoppable.spawn(child)
        try:
            await handle.result()
        except BaseException as error:
            raised.append(error)
            raise

    handle = await stoppable.spawn(parent)
    await asyncio.sleep(0.01)
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"
    assert isinstance(raised[0], stoppable.AgentStopped)
    assert raised[0].target == handle.id


async def test_an_agent_that_swallows_its_childs_stop_is_stopped_all_the_same():
    """A child that re-raises an ancestor's stop delivers it to every run it crosses."""

    async def child():
        await stoppable.sleep(60)

    async def parent():
        try:
            await stoppable.call(child)
        except BaseException:
            return "swallowed"

    handle = await stoppable.spawn(parent)
    await asyncio.sleep(0.01)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result) == ("stopped", "swallowed")


async def test_spawning_in_a_stopped_run_raises_and_starts_nothing():
    started = []

    async def child():
        started.append(True)

    async def parent():
        stoppable.current_run().stop("cooperative")
        await stoppable.spawn(child)

    handle = await stoppable.spawn(parent)
    assert (await handle.outcome()).status == "stopped"
    assert not started


async def test_a_clean_up_may_call_an_agent_in_a_shield():
    saved = []

    async def save():
        with stoppable.boundary("store"):
            await asyncio.sleep(0)
        saved.append(stoppable.should_stop())
        return "saved"

    async def agent():
        try:
            await stoppable.sleep(60)
        finally:
            async with stoppable.shielded(5):
                saved.append(await stoppable.call(save))
                saved.append((await (await stoppable.spawn(save)).outcome()).status)

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0.01)
    await handle.stop()
    outcome = await handle.outcome()
    assert saved == [False, "saved", False, "completed"]
    assert (outcome.status, outcome.clean) == ("stopped", True)


async def test_a_stop_that_awaits_in_from_another_run_is_an_error_there():
    """Run b awaits a task that belongs to run a; a's stop must not look like b's."""
    tasks = []

    async def a():
        async def inner():
            await stoppable.sleep(60)

        tasks.append(asyncio.create_task(inner()))
        await stoppable.sleep(60)

    async def b():
        await tasks[0]

    first = await stoppable.spawn(a)
    await asyncio.sleep(0.01)
    second = await stoppable.spawn(b)
    await asyncio.sleep(0.01)
    await first.stop()
    assert (await first.outcome()).status == "stopped"
    outcome = await second.outcome()
    assert outcome.status == "failed"
    assert isinstance(outcome.error, stoppable.RunStopped)
    assert outcome.error.run_id == first.id


async def test_exception_groups_are_split():
    """The stop of one task and the error of another, out of one TaskGroup."""

    async def stops():
        await stoppable.sleep(60)

    async def fails():
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("while stopping")

    async def agent():
        async with asyncio.TaskGroup() as group:
            group.create_task(stops())
            group.create_task(fails())

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0.01)
    await handle.stop()
    outcome = await handle.outcome()
    assert outcome.status == "stopped"
    assert isinstance(outcome.error, ExceptionGroup)
    assert [str(error) for error in outcome.error.exceptions] == ["while stopping"]


async def test_an_exception_group_without_a_stop_is_a_failure():
    async def agent():
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

    assert (await (await stoppable.spawn(agent)).outcome()).status == "failed"


async def test_a_group_with_an_exit_in_it_lets_the_exit_out():
    with pytest.raises(SystemExit):
        async with stoppable.open_run("work") as run:
            raise BaseExceptionGroup("several", [SystemExit(3), ValueError("one")])
    assert run.status == "failed"
    assert isinstance(run.outcome.error, ExceptionGroup)


@pytest.mark.parametrize("depth", [10, 5000])
async def test_a_deep_chain_of_runs_settles_without_recursion(depth):
    from stoppable._core.node import RunNode

    runs = [RunNode("root")]
    runs[0].begin(None)
    for _ in range(depth):
        runs.append(RunNode("child", runs[-1]))
        runs[-1].begin(None)
    runs[0].stop("cooperative")
    for run in runs:
        run.deliver(raised=True)
        run.end(None, None)
    assert {run.status for run in runs} == {"stopped"}


async def _until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)

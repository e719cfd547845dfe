"""``clean`` is True if that is known, False if the contrary is, and None if neither is (docs/semantics.md, G7)."""

import asyncio

from tests.waiting import until

import stoppable


async def test_a_cancel_that_hits_an_await_outside_a_boundary_may_have_hit_a_clean_up():
    log, committing = [], asyncio.Event()

    async def agent():
        try:
            log.append("work")
        finally:
            committing.set()
            await asyncio.sleep(60)
            log.append("committed")

    handle = await stoppable.spawn(agent)
    await committing.wait()
    await handle.stop("immediate")
    assert ((await handle.outcome()).clean, log) == (None, ["work"])


async def test_a_cancel_that_comes_to_rest_inside_a_boundary_is_clean():
    async def agent():
        with stoppable.boundary("tool"):
            await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    await handle.stop("immediate")
    assert (await handle.outcome()).clean is True


async def test_a_cancel_inside_the_boundary_of_a_child_is_clean_in_its_parent_too():
    @stoppable.agent
    async def child():
        with stoppable.boundary("tool"):
            await asyncio.sleep(60)

    async def parent():
        await child()

    handle = await stoppable.spawn(parent)
    await until(lambda: handle.run.first_child is not None and handle.run.first_child.in_flight)
    inner = handle.run.first_child
    await handle.stop("immediate")
    assert (await handle.outcome()).clean is True
    assert inner.outcome.clean is True


async def test_a_leaf_under_nested_task_groups_is_cancelled_once():
    log = []

    async def leaf():
        try:
            with stoppable.boundary("tool"):
                await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            log.append("closed")

    async def nested(depth):
        async with asyncio.TaskGroup() as group:
            group.create_task(nested(depth - 1) if depth else leaf())

    handle = await stoppable.spawn(nested, 3)
    await until(lambda: handle.run.in_flight)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert log == ["closed"]


async def test_clean_is_not_said_if_the_users_own_code_cancels_a_task_again():
    log, cleaning = [], asyncio.Event()

    async def pump():
        try:
            with stoppable.boundary("tool"):
                await asyncio.sleep(60)
        finally:
            cleaning.set()
            await asyncio.sleep(60)
            log.append("closed")

    async def agent():
        task = asyncio.create_task(pump())
        try:
            with stoppable.boundary("tool"):
                await asyncio.sleep(60)
        finally:
            await cleaning.wait()
            task.cancel()
            await asyncio.wait([task])

    handle = await stoppable.spawn(agent)
    await until(lambda: len(handle.run.in_flight) == 2)
    await handle.stop("immediate")
    assert ((await handle.outcome()).clean, log) == (None, [])


async def test_an_error_on_the_way_out_is_not_clean():
    async def agent():
        try:
            await stoppable.sleep(60)
        finally:
            raise ValueError

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop()
    assert (await handle.outcome()).clean is False

"""Whoever sees the end of a run sees the ends below it."""

import asyncio

import stoppable
from stoppable import Supervisor

from .late_store import Late


async def test_the_end_of_a_run_is_kept_after_the_ends_below_it():
    """The store is still at an event of the child when both have ended."""
    store = Late()
    children = []

    @stoppable.agent
    async def child():
        children.append(stoppable.current_run().id)
        stoppable.emit("held up")
        while not store.unanswered:
            await asyncio.sleep(0.001)

    async def parent():
        await child()

    async with asyncio.timeout(30), Supervisor(store) as supervisor:
        handle = await supervisor.start(parent)
        run = supervisor._core.writer.logs[handle.id].run
        while run.outcome is None or not supervisor._core.writer.calls.is_idle:
            await asyncio.sleep(0.001)
        store.release()
        await handle.outcome()
        assert store.ended == [*children, handle.id]
        assert {record.status for record in await supervisor.tree(handle.id)} == {"completed"}

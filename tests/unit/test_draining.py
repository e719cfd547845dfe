"""A branch that met the stop lets the calls in flight of its siblings finish."""

import asyncio

import pytest
from tests.waiting import until

import stoppable


class Branches:
    """Two branches in a task group: one is in a paid call, the other meets the stop."""

    def __init__(self):
        self.paid = asyncio.Event()
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.answers = []

    async def call(self):
        with stoppable.boundary("llm", "paid"):
            self.entered.set()
            await self.paid.wait()
            self.answers.append("answer")

    async def meet(self):
        try:
            await self.go_on.wait()
            stoppable.check()
        except stoppable.AgentStopped:
            self.answers.append("met")
            await stoppable.drained()
            raise

    async def agent(self):
        async with asyncio.TaskGroup() as group:
            group.create_task(self.call())
            group.create_task(self.meet())


async def test_a_paid_call_finishes_while_the_grace_lasts():
    branches = Branches()
    handle = await stoppable.spawn(branches.agent)
    await branches.entered.wait()
    await handle.stop()
    branches.go_on.set()
    await until(lambda: branches.answers == ["met"])
    branches.paid.set()
    assert (await handle.outcome()).status == "stopped"
    assert branches.answers == ["met", "answer"]
    assert {node.name: node.fate for node in handle.run.receipt.entries if node.kind == "llm"} == {"paid": "finished"}


@pytest.mark.parametrize("ends", ["interrupt", "cooperative"])
async def test_it_waits_no_longer_than_the_grace(ends, clock):
    branches = Branches()
    handle = await stoppable.spawn(branches.agent)
    await branches.entered.wait()
    await handle.stop("cooperative" if ends == "cooperative" else "graceful")
    branches.go_on.set()
    await until(lambda: branches.answers == ["met"])
    clock.advance(10)
    assert (await handle.outcome()).status == "stopped"
    assert branches.answers == ["met"]


async def test_a_call_of_a_child_is_one_in_flight():
    branches = Branches()

    async def agent():
        async with asyncio.TaskGroup() as group:
            group.create_task(stoppable.call(branches.call))
            group.create_task(branches.meet())

    handle = await stoppable.spawn(agent)
    await branches.entered.wait()
    await handle.stop()
    branches.go_on.set()
    await until(lambda: branches.answers == ["met"])
    branches.paid.set()
    await handle.outcome()
    assert branches.answers == ["met", "answer"]


async def test_outside_a_run_without_a_stop_and_inside_ones_own_call_it_returns_at_once():
    await stoppable.drained()

    async def agent():
        await stoppable.drained()
        with stoppable.boundary("tool", "own"):
            stoppable.current_run().stop("cooperative")
            await stoppable.drained()
        return "done"

    assert (await (await stoppable.spawn(agent)).outcome()).status in {"completed", "stopped"}

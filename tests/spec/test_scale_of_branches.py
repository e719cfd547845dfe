"""Thousands of branches in one run: what a stop costs grows with their number, and no faster."""

import asyncio

import stoppable
from stoppable._engine import waits
from stoppable._engine.tasks import TaskParticipant


async def _looks_of_a_stop(count, monkeypatch):
    """Return how often a stop asks whether a task is alive, or who is waited for, in a run with many branches."""
    looks = 0

    def counted(original):
        def look(*args):
            nonlocal looks
            looks += 1
            return original(*args)

        return look

    async def branch(number):
        begun.add(number)
        if len(begun) == count:
            all_begun.set()
        if number == 0:
            async with stoppable.boundary("llm"):
                await answer.wait()
        else:
            await stoppable.sleep(3600)

    async def agent():
        await asyncio.gather(*(branch(number) for number in range(count)))

    begun, all_begun, answer = set(), asyncio.Event(), asyncio.Event()
    with monkeypatch.context() as patched:
        handle = await stoppable.spawn(agent)
        await all_begun.wait()
        patched.setattr(TaskParticipant, "alive", counted(TaskParticipant.alive))
        patched.setattr(TaskParticipant, "started_by", counted(TaskParticipant.started_by))
        patched.setattr(waits, "_LOOK_SECONDS", 3600)  # so that time adds none; the look that ends it is the answer's
        await handle.stop()
        while len(waits._waiting) < count - 1:
            await asyncio.sleep(0)
        waiting = looks
        patched.setattr(waits, "_LOOK_SECONDS", 0.01)
        answer.set()
        await handle.stop("immediate")
        assert (await handle.outcome()).status == "stopped"
    return waiting, looks


async def test_what_a_stop_costs_grows_with_the_branches_and_no_faster(monkeypatch):
    few = await _looks_of_a_stop(50, monkeypatch)
    many = await _looks_of_a_stop(500, monkeypatch)
    assert many[0] <= 20 * few[0]
    assert many[1] <= 20 * few[1]

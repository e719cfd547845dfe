"""G7: clean means every finally and __aexit__ on the path ran to its end."""

import asyncio

import pytest
from tests.waiting import until

import stoppable
from stoppable.testing.participant_suite import (
    test_a_clean_up_may_use_boundaries_in_a_shield,
    test_a_polite_stop_runs_the_clean_up_and_is_clean,
)
from stoppable.testing.scripts import FileProbe

__all__ = [  # what every kind of participant must do, for those of others too
    "test_a_clean_up_may_use_boundaries_in_a_shield",
    "test_a_polite_stop_runs_the_clean_up_and_is_clean",
]


async def test_a_cancel_lets_a_clean_up_of_one_and_a_half_seconds_run_to_its_end():
    """CANCEL is sent once: a second one would end the clean-up."""
    cleaned = []

    async def agent():
        try:
            with stoppable.boundary("tool"):
                await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1.5)
            cleaned.append(True)

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0)
    await handle.stop("immediate")
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert cleaned == [True]
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "cancel", True)


async def test_nested_runs_in_one_task_get_one_cancel(clock):
    """Each of the three finally blocks awaits; a cancel per run would cut two of them short."""
    cleaned = []

    async def level(depth):
        try:
            if depth:
                await stoppable.call(level, depth - 1)
            else:
                with stoppable.boundary("tool"):
                    await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(depth)

    handle = await stoppable.spawn(level, 2)
    await asyncio.sleep(0.01)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert cleaned == [0, 1, 2]
    assert outcome.clean


@pytest.mark.parametrize("gathered", [True, False], ids=["gather", "TaskGroup"])
async def test_a_cancel_that_a_task_group_passes_on_does_not_cut_the_clean_up_of_its_tasks(gathered):
    cleaned = []

    async def worker(number):
        try:
            with stoppable.boundary("tool", str(number)):
                await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            cleaned.append(number)

    async def agent():
        if gathered:
            await asyncio.gather(*(worker(n) for n in range(3)))
        else:
            async with asyncio.TaskGroup() as group:
                for n in range(3):
                    group.create_task(worker(n))

    handle = await stoppable.spawn(agent)
    await until(lambda: len(handle.run.in_flight) == 3)
    receipt = await handle.stop("immediate")
    outcome = await handle.outcome()
    assert sorted(cleaned) == [0, 1, 2]
    assert sorted(receipt.in_flight) == ["tool:0", "tool:1", "tool:2"]
    assert (outcome.status, outcome.rung) == ("stopped", "cancel")
    fates = {node.name: node.fate for node in handle.run.receipt.entries if node.kind == "tool"}
    assert fates == {"0": "cancelled", "1": "cancelled", "2": "cancelled"}


async def test_a_shield_holds_cancel_back_until_it_is_left(clock):
    saved = []
    shielded, proceed = asyncio.Event(), asyncio.Event()

    async def agent():
        with stoppable.shielded(30):
            shielded.set()
            await proceed.wait()
            saved.append(True)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await shielded.wait()
    await handle.stop("graceful", grace=1)
    clock.advance(3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert handle.run.rung == "cancel"
    assert not saved
    proceed.set()
    outcome = await handle.outcome()
    assert saved == [True]
    assert (outcome.status, outcome.clean) == ("stopped", None)


async def test_a_shield_ends_with_its_own_budget(clock):
    shielded = asyncio.Event()

    async def agent():
        with stoppable.shielded(3):
            shielded.set()
            await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await shielded.wait()
    await handle.stop("immediate")
    for _ in range(5):
        await asyncio.sleep(0)
    assert handle.status == "stopping"
    clock.advance(3)
    assert (await handle.outcome()).rung == "cancel"


async def test_a_shield_ends_at_kill_at_the_latest(clock):
    shielded = asyncio.Event()
    seen = []

    async def agent():
        with stoppable.shielded(1000):
            shielded.set()
            try:
                await asyncio.sleep(60)
            finally:
                seen.append(stoppable.should_stop())

    handle = await stoppable.spawn(agent)
    await shielded.wait()
    await handle.stop("immediate")
    clock.advance(5)
    outcome = await handle.outcome()
    assert (outcome.rung, outcome.clean) == ("kill", False)
    assert seen == [True]


async def test_a_clean_up_that_hangs_is_bounded_by_the_ladder(clock):
    entered = asyncio.Event()

    async def agent():
        try:
            await asyncio.sleep(60)
        finally:
            entered.set()
            await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0)
    await handle.stop("immediate")
    await entered.wait()
    clock.advance(5)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "kill", False)


async def test_a_cancel_that_hits_a_clean_up_is_not_clean(clock):
    """The stop was raised, the clean-up runs, and then CANCEL comes: nobody knows what it cut off."""
    in_cleanup, working = asyncio.Event(), asyncio.Event()

    async def agent():
        try:
            with stoppable.boundary("llm"):
                working.set()
                await asyncio.sleep(0.001)
            stoppable.check()
        finally:
            in_cleanup.set()
            await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await working.wait()
    await handle.stop("graceful")
    await in_cleanup.wait()
    clock.advance(11)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "cancel", None)


async def test_term_lets_the_clean_up_of_a_command_run_to_its_end(tmp_path):
    """TERM is sent once: the shell would leave its trap at a second one."""
    probe = FileProbe(tmp_path)

    async def agent():
        trap = "trap - TERM; sleep 0.2; echo cleaned >> notes; exit"
        wait = "while :; do sleep 0.01; done"
        await stoppable.run_process(f"trap '{trap}' TERM; echo up >> notes; {wait}", shell=True, cwd=tmp_path)

    handle = await stoppable.spawn(agent)
    await probe.seen("up")
    await handle.stop("immediate")
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert probe.notes == ["up", "cleaned"]
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "cancel", True)

"""Hundreds of children with hooks, and stops from many threads: the work of a stop grows with the tree, and no faster.

The CPU time of a tree and of one four times as large are compared: work that grows with the square takes sixteen times.
"""

import asyncio
import threading
import time

import pytest

import stoppable

LONG = stoppable.Policy(grace=600, cancel=600, kill=600)  # however slow the machine, nothing is given up
FEW, TIMES, ROUNDS = 150, 4, 3
AT_MOST = 10  # times the CPU time of the small tree


async def _stopped_tree(count, stop):
    """Stop a run with many children, which have a hook each, and return the CPU time that it took."""
    hooked, begun, all_begun = [], [], asyncio.Event()

    async def child():
        stoppable.on_stop(lambda: hooked.append(1))
        begun.append(1)
        if len(begun) == count:
            all_begun.set()
        await stoppable.sleep(3600)

    async def parent():
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(stoppable.call(child))

    handle = await stoppable.spawn(parent, policy=LONG)
    await all_begun.wait()
    before = time.process_time()
    await stop(handle)
    outcome = await handle.outcome()
    took = time.process_time() - before
    assert outcome.status == "stopped"
    assert {node.fate for node in handle.run.receipt.entries} == {"stopped"}
    while len(hooked) < count:  # they are called elsewhere
        await asyncio.sleep(0.001)
    return took


async def once(handle):
    await handle.stop()


async def from_many_threads(handle):
    def press():
        for _ in range(20):
            handle.run.stop()

    threads = [threading.Thread(target=press) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)


@pytest.mark.parametrize("stop", [once, from_many_threads])
async def test_what_a_stop_costs_grows_with_the_children_and_no_faster(stop):
    few = min([await _stopped_tree(FEW, stop) for _ in range(ROUNDS)])
    many = min([await _stopped_tree(TIMES * FEW, stop) for _ in range(ROUNDS)])
    assert many < AT_MOST * few

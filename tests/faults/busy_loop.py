"""Stops well-behaved runs on an event loop that other code blocks, beside busy threads; none may be lost.

    python tests/faults/busy_loop.py --runs 200

All runs are in ``asyncio.sleep`` inside a boundary; every second one cleans up for a moment when it is cancelled. At
random moments something blocks their loop for three seconds, and eight threads compute all the time. It prints one row
of bench/results/busy-loop.md, and exits with 1 if a run was lost or a clean-up was cut that had the time.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import platform
import random
import sys
import threading
import time

import stoppable

BLOCKED_SECONDS = 3.0
BUSY_THREADS = 8
MODES = ("graceful", "immediate", "kill")
POLICY = stoppable.Policy(grace=1, interrupt=0.5, cancel=2, kill=2, blind_grace=0.5)


async def agent(number: int, saved: list[int]) -> None:
    """Wait inside a tool, as most agents do most of the time."""
    try:
        async with stoppable.boundary("tool", "wait"):
            await asyncio.sleep(600)
    finally:
        if number % 2:
            for _ in range(5):
                await asyncio.sleep(0.01)
            saved.append(number)


async def block(dice: random.Random) -> None:
    """Block the loop again and again, as a synchronous call in async code does."""
    while True:
        await asyncio.sleep(dice.uniform(0, 1))
        time.sleep(BLOCKED_SECONDS)


async def one(number: int, dice: random.Random, saved: list[int]) -> tuple[str, str, bool]:
    """Start a run, stop it at some moment, and return its mode, its status and whether a clean-up was cut."""
    handle = await stoppable.spawn(agent, number, saved, policy=POLICY)
    await asyncio.sleep(dice.uniform(0, 20))
    mode = dice.choice(MODES)
    await handle.stop(mode)
    outcome = await handle.outcome()
    is_cut = mode != "kill" and number % 2 == 1 and number not in saved
    return mode, outcome.status, is_cut


async def stop_all(runs: int, seed: int) -> tuple[collections.Counter[str], int]:
    dice, saved = random.Random(seed), list[int]()
    blocking = asyncio.create_task(block(dice))
    ends = await asyncio.gather(*(one(number, dice, saved) for number in range(runs)))
    blocking.cancel()
    return collections.Counter(status for _, status, _ in ends), sum(is_cut for *_, is_cut in ends)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=compute) for _ in range(BUSY_THREADS)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    try:
        statuses, cut = asyncio.run(stop_all(asked.runs, asked.seed))
    finally:
        over.set()
    seconds = time.monotonic() - began
    row = (f"{asked.runs:,}", statuses["stopped"], statuses["lost"], cut, f"{seconds:.0f}")
    print(f"| {platform.python_version()} | {' | '.join(map(str, row))} |")
    return 0 if statuses["stopped"] == asked.runs and not cut else 1


if __name__ == "__main__":
    sys.exit(main())

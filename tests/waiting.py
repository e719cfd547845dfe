"""Waiting for something to be so: the deadline is generous, since it only matters to a test that fails."""

import asyncio
import time


async def until(condition, within=30.0):
    """Wait for something to be so, and return it."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within} seconds"
        await asyncio.sleep(0.001)
    return found


def wait_until(condition, within=30.0):
    """Wait, without an event loop, for something that another thread or process does, and return it."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within} seconds"
        time.sleep(0.005)
    return found


async def until_its_loop_knows(process):
    """Wait until the loop has closed what it keeps of a process: it hears of the death later than the run."""
    await process.wait()
    await asyncio.sleep(0)  # the transport is closed in the next turn

"""The agents of the replicas; a module of its own, which `stoppable serve` imports."""

from pathlib import Path

import stoppable


@stoppable.agent
async def in_steps(folder: str):
    """Emit one event after the other, each when the file that is named after it is there."""
    for number in range(1, 1000):
        while not Path(folder, str(number)).exists():
            await stoppable.sleep(0.05)
        stoppable.emit("step", number=number)


@stoppable.agent
async def stubborn(folder: str):
    """Look whether it is stopped only once the file `end` is there."""
    with stoppable.shielded(600):
        while not Path(folder, "end").exists():
            await stoppable.sleep(0.05)
    await stoppable.sleep(36_000)


@stoppable.agent
async def forever():
    """Wait until it is stopped."""
    await stoppable.sleep(36_000)

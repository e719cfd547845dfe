"""The agents of the replicas; a module of its own, which `stoppable serve` imports."""

import os

import stoppable


@stoppable.agent
async def forever():
    """Count until it is stopped."""
    count = 0
    while True:
        count += 1
        stoppable.emit("counted", count=count)
        await stoppable.sleep(0.05)


@stoppable.agent
async def environment():
    """Return what this process, and a command that it starts, have in their environment."""
    done = await stoppable.run_process(["env"])
    return {"here": dict(os.environ), "command": done.stdout}

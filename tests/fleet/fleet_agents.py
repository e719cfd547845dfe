"""The agents of the replicas; a module of its own, which `stoppable serve` imports."""

import stoppable


@stoppable.agent
async def forever():
    """Count until it is stopped."""
    count = 0
    while True:
        count += 1
        stoppable.emit("counted", count=count)
        await stoppable.sleep(0.05)

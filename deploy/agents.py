"""The agents of the image: put yours here."""

import stoppable


@stoppable.agent
async def count(seconds: float = 60) -> int:
    """Count the seconds until it is stopped, or until they are over."""
    counted = 0
    while counted < seconds:
        await stoppable.sleep(1)
        counted += 1
        stoppable.emit("counted", count=counted)
    return counted

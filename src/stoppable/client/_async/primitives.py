"""What the client for async code needs and blocking code does differently; ``_sync`` has its own version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stoppable.records import RunRecord

pause = asyncio.sleep
time_limit = asyncio.timeout


async def wait_at_most(
    seconds: float | None, end: Callable[[], Awaitable[RunRecord]], look: Callable[[], Awaitable[RunRecord]]
) -> RunRecord:
    """Return the record at the end of a run, or how it looks after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await end()
    except TimeoutError:
        return await look()

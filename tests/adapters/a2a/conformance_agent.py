"""The agent that ``stoppable serve`` offers to the conformance suites.

An agent sees the text of a message, not its id, by which the suites ask for files, questions and rejections.
"""

import asyncio
import os

import stoppable


@stoppable.agent
async def conformance(text: str) -> str:
    """Answer any message."""
    if "resubscribe" in text:  # which the suite for 0.3 says
        async with stoppable.boundary("tool", "wait"):
            await asyncio.sleep(2 * float(os.environ.get("TCK_STREAMING_TIMEOUT", "2.0")))
    return "Generated text content"

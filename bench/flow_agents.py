"""The agents whose way through the code flows.py follows."""

import asyncio

import stoppable

go_on: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []


@stoppable.agent
async def sleeps() -> None:
    await stoppable.sleep(3600)


@stoppable.agent
async def enters_once() -> None:
    event = asyncio.Event()
    go_on.append((asyncio.get_running_loop(), event))
    await event.wait()
    async with stoppable.boundary("tool", "search"):
        await asyncio.Event().wait()


@stoppable.agent
async def returns() -> str:
    async with stoppable.boundary("tool", "search"):
        return "done"

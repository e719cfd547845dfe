"""Agents for editors: this module prints, as modules do."""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import stoppable

print("a module that prints must not break the protocol")


async def talkative(text: str) -> str:
    """Print, in this process and in another one."""
    print("an agent that prints must not break it either")
    os.write(1, b"nor one that writes to the file descriptor\n")
    echo = "import sys; print(sys.stdin.read() or 'no input')"
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", echo)
    await process.wait()
    return text


@stoppable.agent
async def helper() -> None:
    """Use a tool, as a sub-agent."""
    async with stoppable.boundary("tool", "read"):
        pass


async def toolbox(text: str) -> str:
    """Use tools, and wait in one until a stop if that is asked for."""
    async with stoppable.boundary("tool", "search"):
        stoppable.append_partial("found. ")
    await helper()
    async with stoppable.boundary("tool", "write"):
        if text == "wait":
            stoppable.append_partial("writing. ")
            await asyncio.sleep(600)
    return "done"


async def stubborn(text: str) -> str:
    """Wait in a call, and then in its clean-up until the stop is the hardest."""
    async with stoppable.boundary("tool", "call"):
        stoppable.append_partial("in a call. ")
        try:
            await asyncio.sleep(600)
        finally:
            while stoppable.current_run().receipt.mode != "kill":
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.005)
    return text


async def talker(text: str):
    """Yield words until a stop, or say one if that is asked for."""
    if text == "once":
        yield "once"
        return
    number = 0
    while True:
        number += 1
        yield f"word {number}. "
        await asyncio.sleep(0.001)


async def placed(text: str, cwd: str, session_id: str) -> str:
    """Say where it is."""
    return f"{text} in {cwd} for {len(session_id)}"


async def chat(messages: list) -> str:
    """Say what it has heard, or wait for a stop."""
    if messages[-1]["content"] == "wait":
        stoppable.append_partial("half an answ")
        await asyncio.sleep(600)
    return " | ".join(f"{one['role']}: {one['content']}" for one in messages)


async def marking(path: str) -> None:
    """Say in a file that it has begun, and end only by a stop."""
    Path(path).touch()
    try:
        await asyncio.sleep(600)
    finally:
        Path(path).with_suffix(".left").touch()


def hanging(path: str) -> None:
    """Work in a thread that nothing can end, except the file that it looks for."""
    Path(path).touch()
    while not Path(path).with_suffix(".release").exists():
        time.sleep(0.005)

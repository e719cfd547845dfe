"""Agents for the tests of calls, and of the command: this module prints, as modules do."""

import asyncio
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


async def reporting(steps: int = 2) -> dict:
    """Report progress, and return an object.

    The description of a tool is the first paragraph.
    """
    for step in range(steps):
        stoppable.emit("progress", progress=step, message=f"step {step}")
    stoppable.emit("cost", tokens=7)
    return {"steps": steps}


async def saying() -> None:
    """Say something, and return nothing."""
    stoppable.append_partial("so it is")


def nameless(value, /):
    """Take one argument that has no name for callers."""
    return [value]


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
        time.sleep(0.01)


AGENTS = {one.__name__: one for one in (talkative, reporting, saying, nameless, marking, hanging)}

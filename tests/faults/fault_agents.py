"""The agents of the nodes; a module, so that a worker process can import it."""

import asyncio
from pathlib import Path

import stoppable


async def forever(marks=None):
    """Leave a mark as often as it can, until it is stopped."""
    while True:
        if marks is not None:
            with Path(marks).open("a") as file:
                file.write(".")
        await stoppable.sleep(0.01)


async def stubborn(marks):
    """Go round every boundary."""
    while True:
        with Path(marks).open("a") as file:
            file.write(".")
        try:
            await asyncio.sleep(0.01)
        except BaseException:
            continue


async def commands(pids):
    """Start a command that ignores TERM, and one that left its session."""
    script = f"trap '' TERM; echo $$ >> {pids}; setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' & wait; sleep 1000"
    await stoppable.run_process(script, shell=True)


async def in_worker(marks):
    return await (await stoppable.spawn(forever, marks, isolation="process")).result()


AGENTS = {agent.__name__: agent for agent in (forever, stubborn, commands, in_worker)}

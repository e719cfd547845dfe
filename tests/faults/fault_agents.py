"""The agents of the nodes; a module, so that an agent process can import it."""

import asyncio
import subprocess
from pathlib import Path

import stoppable
from stoppable import sync


async def forever(marks=None):
    """Leave a mark as often as it can, until it is stopped."""
    while True:
        if marks is not None:
            with Path(marks).open("a") as file:
                file.write(".")
        await stoppable.sleep(0.01)


async def tidy(marks):
    """Take a moment to clean up, so that a stop can be met halfway."""
    try:
        await forever(marks)
    finally:
        async with stoppable.shielded(5):
            await asyncio.sleep(0.3)


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


async def plain_commands(pids):
    """Start the same in the ordinary way, and one in a run that completes."""
    stoppable.instrument()
    await stoppable.call(leaves_a_command, pids)
    script = f"trap '' TERM; echo $$ >> {pids}; setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' & wait; sleep 1000"
    process = await asyncio.create_subprocess_shell(script)
    await process.wait()


async def leaves_a_command(pids):
    """Complete, and let a command go on, as plain code may."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(pids).write_text(f"{process.pid}\n")


async def in_worker(marks):
    return await (await stoppable.spawn(forever, marks, isolation="process")).result()


async def steps(marks):
    """Do a little and return."""
    for number in range(20):
        async with stoppable.boundary("tool", "step"):
            with Path(marks).open("a") as file:
                file.write(".")
            await asyncio.sleep(0.005)
        stoppable.append_partial(f"{number} ")
    return "done"


async def fails(marks):
    """Do a little and raise."""
    await stoppable.sleep(0.02)
    raise LookupError(marks)


async def family(marks):
    """Have children, and theirs."""
    for _ in range(3):
        await stoppable.spawn(couple, marks)
    await stoppable.sleep(3600)


async def couple(marks):
    await stoppable.call(forever, marks)


def blocking(marks):
    """Do it on a thread."""
    while True:
        with stoppable.boundary("tool"):
            with Path(marks).open("a") as file:
                file.write(".")
        sync.sleep(0.01)


_AGENTS = (forever, tidy, stubborn, commands, plain_commands, in_worker, steps, fails, family, blocking)
AGENTS = {agent.__name__: agent for agent in _AGENTS}

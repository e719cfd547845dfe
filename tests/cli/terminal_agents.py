"""Agents that are stopped in a terminal, with time between the presses: only the next press makes a stop harder."""

import asyncio
import time
from pathlib import Path

import stoppable

PATIENT = stoppable.Policy(grace=60, cancel=60)


@stoppable.agent(policy=PATIENT)
async def answered(until):
    """Make a call whose answer comes once a file is there, and wait for a stop."""
    async with stoppable.boundary("llm", "call"):
        while not Path(until).exists():
            await asyncio.sleep(0.01)
    stoppable.append_partial("answer 0\n")
    await stoppable.sleep(600)


@stoppable.agent(policy=PATIENT)
def stuck():
    """Block a thread, which nobody can end."""
    _block()


@stoppable.agent(policy=stoppable.Policy(grace=60, cancel=60, kill=60))
def stuck_for_long():
    """Block a thread, which nobody can end and which is not given up soon."""
    _block()


def _block():
    with stoppable.boundary("tool", "stuck"):
        time.sleep(600)

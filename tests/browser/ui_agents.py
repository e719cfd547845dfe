"""Agents that wait until a test opens a gate: a file with a name of its choice."""

import asyncio
import logging.handlers
import os
import queue
import time
from pathlib import Path

import stoppable

GATES = Path(os.environ["UI_GATES"])


async def opened(gate):
    while not (GATES / gate).exists():
        await asyncio.sleep(0.02)


@stoppable.agent
async def asker(gate: str = "never") -> str:
    """Make model calls until it is stopped; the first one lasts until its gate opens."""
    async with stoppable.boundary("llm", "ask"):
        (GATES / f"asks-{stoppable.current_run().id}").touch()
        await opened(gate)
    stoppable.append_partial("the answer that was paid for\n")
    while True:
        async with stoppable.boundary("tool", "look"):
            await stoppable.sleep(0.05)


@stoppable.agent
async def blind() -> None:
    """Never meet a boundary or check."""
    await asyncio.sleep(3600)


@stoppable.agent
async def listening() -> None:
    """Let a library start a thread, and wait for a stop."""
    listener = logging.handlers.QueueListener(queue.Queue(), logging.NullHandler())
    listener.start()
    stoppable.on_end(lambda _: listener.stop())
    async with stoppable.boundary("llm", "ask"):
        await stoppable.sleep(3600)


async def take(stop: stoppable.RemoteStop) -> str:
    """Take the cancel, as a service that never says whether it has ended."""
    return "told"


@stoppable.agent
async def asking() -> None:
    """Wait for a service that cannot confirm its end."""
    async with stoppable.remote("elsewhere", tell=take, ref={}):
        await stoppable.sleep(3600)


async def both(gate):
    children = [await stoppable.spawn(asker, gate) for _ in range(2)]
    return [await child.result() for child in children]


@stoppable.agent
async def family(gate: str = "never") -> list[str]:
    """Two askers side by side."""
    return await both(gate)


@stoppable.agent
async def crowd(count: int = 60, gate: str = "never") -> list[str]:
    """Many askers side by side."""
    children = [await stoppable.spawn(asker, gate) for _ in range(count)]
    return [await child.result() for child in children]


@stoppable.agent
async def wide(count: int = 40) -> None:
    """Forty calls at once; three of them go on, the others end one after the other."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(call("tool", f"fetch_{number}", 0.2 + number * 0.02 if number < count - 3 else 3600))


@stoppable.agent
async def planned(gate: str = "never") -> list[str]:
    """A call that ends, and then two askers side by side."""
    await call("llm", "plan", 0)
    return await both(gate)


@stoppable.agent(policy=stoppable.Policy(grace=600.0, cancel=600.0, kill=600.0))
async def tidy(gate: str = "never") -> None:
    """Clean up for as long as the gate is closed, whatever happens."""
    try:
        async with stoppable.boundary("tool", "work"):
            (GATES / f"asks-{stoppable.current_run().id}").touch()
            await asyncio.sleep(3600)
    finally:
        while not (GATES / gate).exists():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue


@stoppable.agent
async def commands() -> None:
    """Run a command that goes on."""
    await stoppable.run_process(["sleep", "3600"])


@stoppable.agent
def deaf(gate: str) -> str:
    """Hear of no stop, on a thread that nobody can end."""
    with stoppable.boundary("tool", "block"):
        (GATES / f"asks-{stoppable.current_run().id}").touch()
        while not (GATES / gate).exists():
            time.sleep(0.02)
    return "woke up"


HOSTILE = (
    "<script>window.pwned = true</script><img src=x onerror='window.pwned = true'>\n"
    "bell \x07 escape \x1b[31m null \x00 right-to-left \u202egnp.exe\u202c\n"
)


@stoppable.agent
async def hostile(length: int = 5_000_000) -> str:
    """Say what would harm a page that believed it."""
    for _ in range(10):  # one line; a single value may not be so long
        stoppable.append_partial("x" * (length // 10))
    stoppable.append_partial("\n" + HOSTILE)
    stoppable.emit("<b>step</b>", html="<script>window.pwned = true</script>")
    await stoppable.sleep(3600)
    return "over"


@stoppable.agent
async def streams() -> str:
    """Say two lines, and then something else."""
    stoppable.append_partial("line 1\n")
    stoppable.append_partial("line 2\n")
    return "all done"


@stoppable.agent
async def chatty(events: int = 10_050) -> None:
    """Emit more than a log keeps while a call is open, and then go on in another call."""
    async with stoppable.boundary("tool", "first"):
        for number in range(events):
            stoppable.emit("step", number=number)
            if number % 100 == 0:
                await asyncio.sleep(0)
    async with stoppable.boundary("tool", "second"):
        (GATES / f"asks-{stoppable.current_run().id}").touch()
        await asyncio.sleep(3600)


@stoppable.agent
async def fails(message: str = "boom") -> None:
    """Raise an error."""
    raise ValueError(message)


@stoppable.agent
async def steady(events: int = 1000, rate: float = 200.0) -> int:
    """Emit so many events at a rate; every tenth is a call."""
    began = time.monotonic()
    for number in range(events):
        if number % 10 == 0:
            async with stoppable.boundary("tool", "tick"):
                await asyncio.sleep(0)
        else:
            stoppable.append_partial(f"line {number} of what a model might say\n")
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
    return events


@stoppable.agent
async def typed(text: str, count: int = 3, ratio: float = 0.5, loud: bool = False, more: dict | None = None) -> str:
    """Return what it was given."""
    return f"{text} {count} {ratio} {loud} {more}"


async def call(kind, name, seconds):
    async with stoppable.boundary(kind, name):
        await asyncio.sleep(seconds)


# For pictures: what they show of a file is the same wherever they are made.
PICTURED = """
@stoppable.agent
def importer(gate: str) -> None:
    with stoppable.boundary("tool", "parse"):
        while not (GATES / gate).exists():
            time.sleep(0.02)


@stoppable.agent
async def invoice(number: int) -> None:
    raise LookupError(f"no such customer: {number}")


@stoppable.agent
async def greet(text: str) -> str:
    return text
"""
exec(compile(PICTURED, "/srv/agents/importer.py", "exec"))


@stoppable.agent
async def flights(slow: float, gate: str = "") -> str:
    """Search, compare until the gate opens or for so long, keep."""
    await call("tool", "search", 0.7)
    await call("store", "save", 0.25)
    stoppable.append_partial("three flights, the cheapest at 07:40\n")
    async with stoppable.boundary("llm", "compare"):
        await (opened(gate) if gate else asyncio.sleep(slow))
    await call("store", "save", 0.25)
    return "07:40"


@stoppable.agent
async def hotels() -> str:
    """Search, and hang in a booking."""
    await call("tool", "search", 0.4)
    await call("llm", "rank", 0.6)
    await call("tool", "book", 3600)
    return "by the harbour"


@stoppable.agent
async def trip(city: str = "Lisbon", slow: float = 3600.0, gate: str = "") -> str:
    """Plan a trip with two sub-agents."""
    await call("llm", "plan", 0.9)
    stoppable.append_partial(f"A weekend in {city}: looking for flights and hotels.\n")
    children = [await stoppable.spawn(flights, slow, gate), await stoppable.spawn(hotels)]
    return " ".join([await child.result() for child in children])

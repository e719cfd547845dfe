"""Agents that the tests of the client and the command line serve."""

import asyncio
import functools
import logging.handlers
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import stoppable
from stoppable import sync

NOBODY: list[object] = []


@stoppable.agent
async def echo(value=None):
    """Return the input."""
    return value


@stoppable.agent
async def failing():
    """Raise."""
    raise ValueError("it went wrong")


@stoppable.agent
async def waiting():
    """Wait for a stop."""
    stoppable.set_partial("so far")
    await stoppable.sleep(600)


@stoppable.agent
async def impatient():
    """Wait for a stop, and press Ctrl-C again and again from the moment it has ended."""

    def press():
        while True:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.001)

    stoppable.on_end(lambda _: threading.Thread(target=press, daemon=True).start())
    await stoppable.sleep(600)


@stoppable.agent
async def listening():
    """Let a library start a thread, and wait for a stop."""
    listener = logging.handlers.QueueListener(queue.Queue(), logging.NullHandler())
    listener.start()
    stoppable.on_end(lambda _: listener.stop())
    async with stoppable.boundary("llm", "listen"):
        await stoppable.sleep(600)


@stoppable.agent
async def connecting():
    """Make a connection outside any boundary, and wait for a stop."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        async with stoppable.boundary("llm", "wait"):
            await stoppable.sleep(600)


async def take(stop):
    """Take the cancel, as a service that never says whether it has ended."""
    return "told"


@stoppable.agent
async def asking():
    """Wait for a service that cannot confirm its end."""
    async with stoppable.remote("elsewhere", tell=take, ref={}):
        await stoppable.sleep(600)


@stoppable.agent
async def calling(seconds=0.3):
    """Make one model call after another."""
    for number in range(1000):
        async with stoppable.boundary("llm", "call"):
            await asyncio.sleep(seconds)
        stoppable.append_partial(f"answer {number}\n")


@stoppable.agent
async def twice():
    """Make two calls of one name side by side, which finish after the stop."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    async def call():
        async with stoppable.boundary("llm", "same"):
            await stopped.wait()

    with stoppable.on_stop(lambda: loop.call_soon_threadsafe(stopped.set)):
        await asyncio.gather(call(), call())


@stoppable.agent
async def long_call():
    """Make a call that takes for ever, and clean up after it."""
    try:
        async with stoppable.boundary("llm", "long"):
            await asyncio.sleep(600)
    finally:
        stoppable.append_partial("cleaned up")


@stoppable.agent
def stuck():
    """Block a thread, which nobody can end."""
    print("about to block", flush=True)
    with stoppable.boundary("tool", "stuck"):
        time.sleep(600)


@stoppable.agent
async def talker(count=20, pause=0.0):
    """Tell many things, with line ends in them that are none."""
    for number in range(count):
        stoppable.emit("told", number=number, text="a\u2028b\x85c\r\nd")
        await asyncio.sleep(pause)


@stoppable.agent
async def parent():
    """Start two children that wait."""
    handles = [await stoppable.spawn(waiting) for _ in range(2)]
    for handle in handles:
        await handle.result()


@stoppable.agent
async def calling_parent():
    """Start a child that makes a call that takes for ever."""
    child = await stoppable.spawn(long_call)
    while not child.run.in_flight:
        await asyncio.sleep(0.001)
    stoppable.emit("called")
    await child.result()


@stoppable.agent
async def yielding(count=3, pause=0.05):
    """Yield words."""
    for number in range(count):
        await stoppable.sleep(pause)
        yield f"word {number} "


HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]bold[/red] \u202eevil\x9b31m"


@stoppable.agent
async def hostile(until=None):
    """Say things that would take over a careless terminal; the last of them once a file is there, if one is named."""
    print(HOSTILE)
    subprocess.run(["printf", "%s\\n", "from a process: " + HOSTILE], check=True)
    stoppable.emit("told", message=HOSTILE)
    stoppable.append_partial(HOSTILE)
    async with stoppable.boundary("tool", HOSTILE):
        while until is not None and not Path(until).exists():
            await stoppable.sleep(0.01)
    raise RuntimeError(HOSTILE)


@stoppable.agent
def printing(count=3000):
    """Print many lines, as fast as it can."""
    for number in range(count):
        print("printed", number)


@stoppable.agent
async def endless():
    """Yield for ever."""
    while True:
        yield "again\n"
        await stoppable.sleep(0.01)


@stoppable.agent
async def flood():
    """Yield more than a pipe has room for."""
    while True:
        yield "x" * 10_000
        await stoppable.sleep(0)


@stoppable.agent
def counting(count):
    """Yield numbers, as fast as it can."""
    yield from range(count)


@stoppable.agent
def environments():
    """Return what the commands of an agent see of the environments around them."""
    plain = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    ours = sync.run_process(["env"]).stdout
    command = "tr '\\0' '\\n' < /proc/$PPID/environ"
    above = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    server = Path(f"/proc/{os.getppid()}/environ").read_text()
    return {"plain": plain, "run_process": ours, "above": above, "server": server}


@stoppable.agent
def saving():
    """Fail if a command fails, as one does that Ctrl-C ends in a terminal."""
    subprocess.run(["sh", "-c", "echo it saves; sleep 60"], check=True)


TWINS = [echo, functools.partial(echo, "bound")]

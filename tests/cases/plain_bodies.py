"""Agents as people write them: none of them has ever heard of the library that stops them."""

import asyncio
import pathlib
import subprocess
import sys
import threading
import time


class Desk:
    """What an agent of a test shares with it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.notes = []
        self.began = threading.Event()
        self.go_on = threading.Event()

    def note(self, text):
        self.notes.append(text)
        self.began.set()

    def command(self, name="there"):
        code = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
        return [sys.executable, "-c", code, str(self.folder / name)]

    def is_there(self, name="there"):
        return (self.folder / name).exists()


async def awaits_and_cleans_up(desk):
    desk.note("begin")
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.05)
        desk.note("closed")


async def works_in_the_background(desk):
    for number in range(10_000):
        desk.note(number)
        await asyncio.sleep(0.005)
    return "success"


def sleeps_and_returns(desk):
    desk.began.set()
    desk.go_on.wait(30)
    return "value"


async def swallows_the_cancel(desk):
    for _ in range(3):
        try:
            desk.began.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            desk.note("swallowed")
    return "success"


async def works_in_an_executor(desk):
    def work():
        for number in range(20):
            desk.note(number)
            time.sleep(0.01)

    await asyncio.get_running_loop().run_in_executor(None, work)


async def runs_an_asyncio_subprocess(desk):
    desk.process = await asyncio.create_subprocess_exec(*desk.command())
    desk.note(desk.process.pid)
    await desk.process.wait()


async def calls_a_deaf_tool(desk):
    def tool():
        desk.began.set()
        desk.go_on.wait(30)

    await asyncio.to_thread(tool)


async def leaves_a_zombie(desk):
    def zombie():
        desk.began.set()
        desk.go_on.wait(30)
        try:
            subprocess.run(["true"], check=False)
            desk.note("effect")
        except BaseException as error:
            desk.note(type(error).__name__)

    await asyncio.to_thread(zombie)


async def calls_three_tools_at_once(desk):
    barrier = threading.Barrier(3)

    def tool():
        barrier.wait(30)
        desk.began.set()
        desk.go_on.wait(30)

    await asyncio.gather(*(asyncio.to_thread(tool) for _ in range(3)))


def blocks_and_then_runs_a_command(desk):
    desk.began.set()
    desk.go_on.wait(30)
    subprocess.run(["true"], check=False)
    desk.note("effect")


async def waits(desk):
    desk.note("begin")
    await asyncio.sleep(60)


async def delegates_to_a_sub_agent_on_a_bare_thread(desk):
    def sub_agent():
        for number in range(1000):
            subprocess.run(["true"], check=False)
            desk.note(number)

    thread = threading.Thread(target=sub_agent)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.01)


def uses_a_terminal(desk):
    """A shell that runs a command deaf to Ctrl-C, with a job in the background."""
    there = desk.folder / "there"
    script = f"trap '' INT; sleep 300 & (trap '' INT; touch '{there}'; sleep 300)"
    subprocess.run(["bash", "-c", script], check=False, start_new_session=True)

"""Agents in plain Python that work in four ways at once, and say in files when each of them begins and ends."""

import asyncio
import sys
import threading
import time
from pathlib import Path

import stoppable

from ...process_states import is_alive

KINDS = ("async", "thread", "command", "subagent")
_SECONDS = 600  # only a stop ends them
# It has begun once its agent has it, too: a stop before that would find no pid in the folder.
_COMMAND = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
while not (folder / "pid").exists():
    time.sleep(0.002)
(folder / "command.begun").touch()
time.sleep(600)
"""


class Marks:
    """What the parts of one run say in a folder; a part that has left marks nothing any more."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def note(self, kind, what):
        (self.folder / f"{kind}.{what}").touch()

    def has(self, kind, what):
        return (self.folder / f"{kind}.{what}").exists()

    def have_begun(self):
        return all(self.has(kind, "begun") for kind in KINDS)

    def still_there(self):
        """Return the kinds of work that may still leave a mark."""
        there = [kind for kind in KINDS if kind != "command" and not self.has(kind, "left")]
        pid = int((self.folder / "pid").read_text())
        return [*there, *(["command"] if is_alive(pid) else [])]


async def _in_await(marks, kind):
    marks.note(kind, "begun")
    try:
        await asyncio.sleep(_SECONDS)
    finally:
        marks.note(kind, "left")


def _in_thread(marks):
    marks.note("thread", "begun")
    try:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            stoppable.check()  # the one line that a thread needs
            time.sleep(0.005)
    finally:
        marks.note("thread", "left")


async def _in_command(marks):
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", _COMMAND, marks.folder)
    (marks.folder / "pid").write_text(str(process.pid))
    await process.wait()


async def _in_subagent(marks):
    await asyncio.create_task(_in_await(marks, "subagent"))


async def research(folder: str, question: str = "tides") -> str:
    """Work in an await, a thread, a command and a sub-agent at once."""
    marks = Marks(folder)
    stoppable.append_partial(f"notes on {question}: ")
    stoppable.append_partial("one two")
    async with asyncio.TaskGroup() as group:
        group.create_task(_in_await(marks, "async"))
        group.create_task(asyncio.to_thread(_in_thread, marks))
        group.create_task(_in_command(marks))
        group.create_task(_in_subagent(marks))
    return "all of it"


class Gates:
    """What a test lets the agents below do."""

    def __init__(self):
        self.close()

    def close(self):
        """Begin anew, for the next test."""
        self.release = threading.Event()
        self.reached = threading.Event()
        self.calls = []

    def is_blocking(self):
        """Return whether a thread waits for the release: one that is on its way there may yet be spared by a stop."""
        return bool(self.release._cond._waiters)

    async def released(self):
        self.reached.set()
        while not self.release.is_set():
            await asyncio.sleep(0.002)


GATES = Gates()


def hangs(text: str) -> str:
    """Work in a thread that nothing can end."""
    stoppable.append_partial("so far")
    GATES.reached.set()
    GATES.release.wait(_SECONDS)
    return text


async def stubborn(text: str) -> str:
    """Swallow the cancel, and end only when it is let go."""
    try:
        GATES.reached.set()
        await asyncio.sleep(_SECONDS)
    except asyncio.CancelledError:
        GATES.calls.append("swallowed")
        await GATES.released()
    return text


async def echo(text: str) -> str:
    """Say the text, word for word, and return it."""
    for word in text.split(" "):
        stoppable.append_partial(f"{word} ")
    return text


async def waits(text: str) -> str:
    """Say a word, and go on when it is let go; a stop ends it at once."""
    GATES.calls.append(text)
    stoppable.append_partial("first ")
    GATES.reached.set()
    while not GATES.release.is_set():
        await stoppable.sleep(0.002)
    stoppable.append_partial("second ")
    return "third"


async def failing(text: str) -> str:
    """Fail."""
    GATES.calls.append(text)
    stoppable.append_partial("before ")
    raise ValueError("the tool is broken")


async def remembering(text: str, session_id: str | None = None) -> str:
    """Return all that was said in a conversation."""
    GATES.calls.append((session_id, text))
    run = stoppable.current_run()
    if text == "wait":
        GATES.reached.set()
        await stoppable.sleep(_SECONDS)
    said = [one for session, one in GATES.calls if session == session_id]
    return f"{run.owner}: {', '.join(said)}"


async def chatting(messages: list) -> dict:
    """Return the messages that it got."""
    return {"messages": messages}


async def typed(count: int, folder: str = "") -> int:
    """Return a number."""
    return count + 1


async def nothing() -> None:
    """Take nothing and say nothing."""


async def counting(count: int):
    """Yield numbers, and wait for a stop after a hundred of them."""
    stoppable.append_partial("what a model says to it is no answer")
    for number in range(count):
        yield number
        if number == 99:
            await stoppable.sleep(_SECONDS)


async def replacing(text: str) -> str:
    """Replace what it has said."""
    stoppable.set_partial("a draft")
    stoppable.set_partial(text)
    return None


async def flood(text: str) -> None:
    """Say more than anybody reads."""
    while True:
        stoppable.append_partial("x" * 10_000)
        await stoppable.sleep(0.001)


AGENTS = (
    research,
    flood,
    hangs,
    stubborn,
    echo,
    waits,
    failing,
    remembering,
    chatting,
    typed,
    nothing,
    counting,
    replacing,
)

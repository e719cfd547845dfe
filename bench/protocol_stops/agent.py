"""One agent in plain Python. It works in four ways at once, and each leaves a mark ten times a second.

Both servers execute the same code. The text of the user is the folder for the marks; other text is answered at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.surfaces.openai_api.agents import KINDS, Marks

import stoppable

Say = Callable[[str], Awaitable[object]]
_SECONDS = 60.0  # longer than any measurement; whatever nothing stops ends then
_TICK = 0.1
_WORD_SECONDS = 0.25
_COMMAND = """
import sys, time
folder, end = sys.argv[1], time.time() + float(sys.argv[2])
open(f"{folder}/command.begun", "w").close()
while time.time() < end:
    with open(f"{folder}/marks", "a") as file:
        file.write(f"{time.time()} command\\n")
    time.sleep(0.1)
"""


class Work(Marks):
    """The marks that are counted, beside when each kind of work began and ended."""

    def mark(self, kind: str) -> None:
        with (self.folder / "marks").open("a") as file:
            file.write(f"{time.time()} {kind}\n")

    def between(self, begin: float, end: float) -> dict[str, int]:
        """Return how many marks of each kind were left in a time."""
        found = Counter[str]()
        for line in (self.folder / "marks").read_text().splitlines():
            at, _, kind = line.partition(" ")
            found[kind] += begin < float(at) <= end
        return {kind: found[kind] for kind in KINDS}


async def in_await(work: Work, kind: str) -> None:
    work.note(kind, "begun")
    try:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            work.mark(kind)
            await asyncio.sleep(_TICK)
    finally:
        work.note(kind, "left")


def in_thread(work: Work) -> None:
    work.note("thread", "begun")
    try:
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            stoppable.check()  # the one line that a thread needs; it does nothing on a plain server
            work.mark("thread")
            time.sleep(_TICK)
    finally:
        work.note("thread", "left")


async def in_command(work: Work) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", _COMMAND, work.folder, str(_SECONDS))
    (work.folder / "pid").write_text(str(process.pid))
    await process.wait()


async def in_sub_agent(work: Work) -> None:
    await asyncio.create_task(in_await(work, "subagent"))


async def talk(work: Work, say: Say) -> None:
    for number in range(int(_SECONDS / _WORD_SECONDS)):
        await say(f"word{number} ")
        work.note("word", "said")
        await asyncio.sleep(_WORD_SECONDS)


async def answer(text: str, say: Say) -> str:
    """Work in four ways at once, or answer at once."""
    if not text.startswith("/"):
        return f"heard {text}"
    work = Work(text)
    async with asyncio.TaskGroup() as group:
        group.create_task(talk(work, say))
        group.create_task(in_await(work, "async"))
        group.create_task(asyncio.to_thread(in_thread, work))
        group.create_task(in_command(work))
        group.create_task(in_sub_agent(work))
    return "all of it"


async def research(text: str) -> str:
    """Work as it is served by stoppable."""

    async def say(word: str) -> None:
        stoppable.append_partial(word)

    return await answer(text, say)

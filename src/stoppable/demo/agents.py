"""One agent for each case of a stop."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import stoppable
from stoppable import sync
from stoppable.demo.model import chat

_SWALLOWED_AT_MOST = 20


@stoppable.agent
async def stepper(steps: int = 10, seconds: float = 1.0, label: str = "") -> str:
    """Take ten steps of a second each; a stop wakes it at once, and the steps it took are kept."""
    for step in range(1, steps + 1):
        await stoppable.sleep(seconds)
        stoppable.append_partial(f"{label} step {step}/{steps}\n".lstrip())
        stoppable.emit("step", step=step, of=steps)
    return f"{steps} steps"


@stoppable.agent
async def searcher(question: str) -> str:
    """Ask the model one question; the answer streams in, and a stop keeps what has arrived."""
    return await chat(f"Answer in three sentences: {question}")


@stoppable.agent
async def writer(topic: str, findings: list[str]) -> str:
    """Write up what the searchers found."""
    return await chat(f"Summarize for {topic}: " + " ".join(findings))


@stoppable.agent
async def research(topic: str = "stopping AI agents") -> str:
    """Research a topic with sub-agents, each of which calls a model over HTTP: a stop reaches all of them."""
    await chat(f"Name two questions about {topic}")
    stoppable.append_partial("\n")
    stoppable.emit("step", step=1, of=3)
    questions = (f"What is known about {topic}?", f"What is missing in {topic}?")
    searchers = [await stoppable.spawn(searcher, question) for question in questions]
    findings = [await one.result() for one in searchers]
    stoppable.append_partial("\n".join(f"found: {finding}" for finding in findings) + "\n")
    stoppable.emit("step", step=2, of=3)
    report = await writer(topic, findings)
    stoppable.emit("step", step=3, of=3)
    return report


@stoppable.agent
async def thread_tool(rounds: int = 60) -> int:
    """Call a blocking tool on a thread, which notices the stop and leaves its loop."""
    return await stoppable.to_thread(_crunch, rounds)


@stoppable.boundary("tool", "crunch")
def _crunch(rounds: int) -> int:
    for done in range(rounds):
        if stoppable.should_stop():
            return done
        stoppable.set_partial({"rounds": done})
        stoppable.emit("step", step=done, of=rounds)
        sync.sleep(0.5)
    return rounds


@stoppable.agent
async def process_tree(seconds: int = 300) -> str:
    """Start a process that starts two more, one of them in another session: all of them end with the run."""
    nap = f"import time; time.sleep({seconds})"
    code = (
        "import subprocess, sys\n"
        f"nap = [sys.executable, '-c', {nap!r}]\n"
        "children = [subprocess.Popen(nap), subprocess.Popen(nap, start_new_session=True)]\n"
        "[child.wait() for child in children]\n"
    )
    result = await stoppable.run_process([sys.executable, "-c", code])
    return result.stdout


@stoppable.agent
async def stubborn() -> str:
    """Swallow every exception, as bad retry loops do: it gets no further effect, however often it tries."""
    swallowed = 0
    while swallowed < _SWALLOWED_AT_MOST:
        try:
            async with stoppable.boundary("tool", "poke"):
                stoppable.append_partial("poked\n")
            await asyncio.sleep(0.25)
        except BaseException:
            swallowed += 1
            stoppable.emit("swallowed", step=swallowed, of=_SWALLOWED_AT_MOST)
            await _nap()
    return f"gave up after swallowing {swallowed}"


async def _nap() -> None:
    with contextlib.suppress(asyncio.CancelledError):  # this one too
        await asyncio.sleep(0.25)


@stoppable.agent
def blocked_thread(seconds: float = 120.0) -> str:
    """Block a thread in C code, which cannot be ended: the run is lost, and its receipt names the line."""
    with stoppable.boundary("tool", "block"):
        time.sleep(seconds)  # noqa: TID251 - the very thing it shows
    return "woke up"


AGENTS: Mapping[str, Callable[..., Any]] = {
    agent.__name__: agent
    for agent in (stepper, research, searcher, writer, thread_tool, process_tree, stubborn, blocked_thread)
}
"""By name, as ``stoppable serve --demo`` offers them."""

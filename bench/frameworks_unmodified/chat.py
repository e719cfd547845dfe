"""What every agent has in common: two tools with effects that can be counted, and a session with a user."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

MODEL = "gpt-5-mini"
EFFECTS, PAUSE_SECONDS = 7, 0.1
INSTRUCTIONS = "You book trips."


class Log:
    """What the tools did, in a file: those of an MCP server are in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    def count(self, word: str) -> int:
        return sum(word in line for line in self.path.read_text().splitlines())


def blocking_tool(log: Log) -> Callable[[], str]:
    def book_sync() -> str:
        """Book a trip in blocking code."""
        log.write("begin book_sync")
        for _ in range(EFFECTS):
            time.sleep(PAUSE_SECONDS)
            log.write("effect book_sync")
        return "booked"

    return book_sync


def async_tool(log: Log) -> Callable[[], Awaitable[str]]:
    async def book_async() -> str:
        """Book a trip in a task."""
        log.write("begin book_async")
        for _ in range(EFFECTS):
            await asyncio.sleep(PAUSE_SECONDS)
            log.write("effect book_async")
        return "booked"

    return book_async


class Chat:
    """One session of a user with an agent; `delegates` says that the agent leaves the work to another one.

    `ask` and `ask_streamed` are what an application would call for a message of the user.
    """

    PACKAGES: tuple[str, ...] = ()
    HELPER: str | None = "task"
    """The argument of the tool `helper`, which is the other agent; None if the framework has no agents."""

    def __init__(self, url: str, log: Log, *, delegates: bool) -> None:
        self.url = url
        self.log = log
        self.delegates = delegates
        self.tools: list[Any] = [blocking_tool(log), async_tool(log)]

    async def open(self) -> None:
        """Make the agent."""

    async def close(self) -> None:
        """Close what `open` has opened."""

    def ask(self, text: str) -> Any:
        raise NotImplementedError

    def ask_streamed(self, text: str) -> Any:
        raise NotImplementedError

"""Two tools with effects that can be counted, in a process of their own too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

EFFECTS, PAUSE_SECONDS = 7, 0.1


class Log:
    """What the tools did, in a file: those of an MCP server are in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    def tools(self) -> list[Callable[[], Any]]:
        return [blocking_tool(self), async_tool(self)]

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

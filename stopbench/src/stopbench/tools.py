"""The tools of the agents: each writes what it does into a file, also from other processes, to be counted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EFFECTS, PAUSE_SECONDS = 10, 0.1
CLEAN_UP_SECONDS = 0.3
COMMAND = Path(__file__).with_name("command.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the file."""

    at: float
    """Of the monotonic clock, which all processes of a machine share."""
    pid: int
    kind: str
    """"begin", "effect" or "done"; "cleaning" and "cleaned" around clean-up."""
    tool: str


class EffectLog:
    """The file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, tool: str) -> None:
        """Append a line; short ones are never mixed up with those of others."""
        line = f"{time.monotonic():.6f} {os.getpid()} {kind} {tool}\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def events(self) -> list[Event]:
        """Return the lines, in the order in which they were written."""
        lines = [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []
        return [Event(at=float(at), pid=int(pid), kind=kind, tool=tool) for at, pid, kind, tool in lines]


def make_tools(path: Path) -> list[Callable[..., Any]]:
    """Return functions without parameters, whose name and docstring are for the model."""
    log = EffectLog(path)

    def book_sync() -> str:
        """Book a trip in blocking code."""
        log.write("begin", "book_sync")
        for _ in range(EFFECTS):
            time.sleep(PAUSE_SECONDS)
            log.write("effect", "book_sync")
        log.write("done", "book_sync")
        return "book_sync done"

    async def book_async() -> str:
        """Book a trip in a task."""
        log.write("begin", "book_async")
        await _work(log, "book_async")
        log.write("done", "book_async")
        return "book_async done"

    async def book_with_clean_up() -> str:
        """Book a trip in a task, and clean up."""
        log.write("begin", "book_with_clean_up")
        try:
            await _work(log, "book_with_clean_up")
        finally:
            log.write("cleaning", "book_with_clean_up")
            await asyncio.sleep(CLEAN_UP_SECONDS)
            log.write("cleaned", "book_with_clean_up")
        log.write("done", "book_with_clean_up")
        return "book_with_clean_up done"

    async def look_up() -> str:
        """Look up a price."""
        log.write("begin", "look_up")
        log.write("effect", "look_up")
        log.write("done", "look_up")
        return "look_up done"

    def run_command() -> str:
        """Run a command."""
        log.write("begin", "run_command")
        subprocess.run([sys.executable, "-S", "-E", COMMAND, path, "tree"], check=True)
        log.write("done", "run_command")
        return "run_command done"

    return [book_sync, book_async, book_with_clean_up, look_up, run_command]


async def _work(log: EffectLog, name: str) -> None:
    for _ in range(EFFECTS):
        await asyncio.sleep(PAUSE_SECONDS)
        log.write("effect", name)

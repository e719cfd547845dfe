"""A client in JavaScript: a process of node that takes a command on each line, and answers with a line of JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Self

from bench.protocol_stops.conversation import Told

HERE = Path(__file__).parent
MODULES = HERE.parents[1] / ".venv-node/node_modules"


class Page:
    """A conversation in such a process."""

    def __init__(self, script: str, package: str, url: str, *options: str) -> None:
        self._command = ["node", str(HERE / script), str(MODULES / package), url, *options]

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()

    async def _call(self, name: str, text: str = "") -> Any:
        self._process.stdin.write(f"{json.dumps([name, text])}\n".encode())
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        assert line, f"{self._command[1]} has ended"
        return json.loads(line)

    async def begin(self, text: str) -> None:
        await self._call("begin", text)

    async def cancel(self) -> Told:
        told = await self._call("cancel")
        return Told(words=told["words"], is_end=told["isEnd"])

    async def end(self) -> str:
        return ""

    async def ask(self, text: str) -> str:
        return await self._call("ask", text)

    async def kept(self) -> str:
        return await self._call("kept")

"""MCP tasks: the client of fastmcp-tasks, and a server of it; the official SDK of Python has no tasks of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import fastmcp
import fastmcp.client.progress
from bench.protocol_stops import plain
from bench.protocol_stops.agent import answer
from bench.protocol_stops.conversation import ASSISTANT, SECONDS, Told
from bench.protocol_stops.with_mcp import run_of
from fastmcp_tasks import TasksExtension, ToolTask, call_tool_task
from mcp.shared.exceptions import MCPError

server = fastmcp.FastMCP("plain")
server.add_extension(TasksExtension())


@server.tool(task=True)
async def research(text: str) -> str:
    async def say(word: str) -> None:
        pass  # a task has no progress

    return await answer(text, say)


class Tasks:
    def __init__(self, client: fastmcp.Client) -> None:
        self._client = client
        self._task: ToolTask

    async def begin(self, text: str) -> None:
        self._task = await call_tool_task(self._client, ASSISTANT, {"text": text})

    async def cancel(self) -> Told:
        await self._task.cancel()
        while (state := await self._task.status()).status == "working":
            await asyncio.sleep(0.01)
        return Told(words=f"`{state.status}`", is_end=True)

    async def end(self) -> str:
        return ""

    async def ask(self, text: str) -> str:
        result = await self._client.call_tool(ASSISTANT, {"text": text})
        return result.content[0].text

    async def kept(self) -> str:
        with contextlib.suppress(MCPError):
            run = await run_of(self._client, self._task.task_id)
            return run["text"] if run else ""
        return ""


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Tasks]:
    async with fastmcp.Client(f"{url}/mcp", timeout=SECONDS) as client:
        yield Tasks(client)


if __name__ == "__main__":
    sys.exit(plain.serve(server.http_app()))

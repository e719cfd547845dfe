"""MCP: the client of mcp, and a server of it over HTTP or, with the argument ``stdio``, over stdio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator

from bench.protocol_stops import plain
from bench.protocol_stops.agent import answer
from bench.protocol_stops.conversation import ASSISTANT, SECONDS, Told
from mcp.client import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError

server = MCPServer("plain")


@server.tool()
async def research(text: str, ctx: Context) -> str:
    async def say(word: str) -> None:
        await ctx.report_progress(0, None, word)

    return await answer(text, say)


class Mcp:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._said = asyncio.Event()
        self._run_id = ""

    async def begin(self, text: str) -> None:
        async def hear(_progress: float, _total: float | None, message: str | None) -> None:
            if not self._said.is_set() and " is run " in (message or ""):
                self._run_id = message.split()[-1]
            self._said.set()

        calling = self._client.call_tool(ASSISTANT, {"text": text}, progress_callback=hear)
        self._call = asyncio.create_task(calling)
        await self._said.wait()

    async def cancel(self) -> Told:
        self._call.cancel()
        await asyncio.wait({self._call})
        return Told(words="nothing", is_end=False)

    async def end(self) -> str:
        while True:
            run = await run_of(self._client, self._run_id)
            if run is None or run["status"] not in {"running", "stopping"}:
                return run["status"] if run else ""
            await asyncio.sleep(0.01)

    async def ask(self, text: str) -> str:
        result = await self._client.call_tool(ASSISTANT, {"text": text})
        return result.content[0].text

    async def kept(self) -> str:
        run = await run_of(self._client, self._run_id)
        return run["text"] if run else ""


async def run_of(client, run_id: str) -> dict | None:
    """Return what the server says about a run; a plain one has nothing to say."""
    try:
        result = await client.read_resource(f"stoppable://runs/{run_id}")
    except MCPError:
        return None
    contents = result if isinstance(result, list) else result.contents
    return json.loads(contents[0].text)


@contextlib.asynccontextmanager
async def opened(url: str, mode: str = "auto") -> AsyncIterator[Mcp]:
    async with Client(f"{url}/mcp", mode=mode, read_timeout_seconds=SECONDS) as client:
        yield Mcp(client)


if __name__ == "__main__":
    if sys.argv[1:] == ["stdio"]:
        server.run()
    else:
        plain.serve(server.streamable_http_app())

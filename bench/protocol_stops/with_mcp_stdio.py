"""MCP over stdio: the client of mcp starts the server itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from bench.protocol_stops.conversation import SECONDS
from bench.protocol_stops.with_mcp import Mcp
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


@contextlib.asynccontextmanager
async def opened(command: str) -> AsyncIterator[Mcp]:
    name, *arguments = json.loads(command)
    with Path("/dev/null").open("w") as noise:
        streams = stdio_client(StdioServerParameters(command=name, args=arguments), errlog=noise)
        async with Client(streams, read_timeout_seconds=SECONDS) as client:
            yield Mcp(client)

"""An MCP server over stdio, which notes what happens in the folder that it is given, and holds calls until released."""

import asyncio
import os
import sys
from pathlib import Path

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer

FOLDER = Path(sys.argv[1])
server = MCPServer("held")


@server.tool()
async def quick() -> str:
    """Return at once."""
    return "quick done"


@server.tool()
async def hold(who: str) -> str:
    """Work until released."""
    (FOLDER / f"{who} entered").write_text(str(os.getpid()))
    while not (FOLDER / f"{who} released").exists():
        await asyncio.sleep(0.01)
    return f"held for {who}"


if __name__ == "__main__":
    (FOLDER / f"pid {os.getpid()}").touch()
    server.run()

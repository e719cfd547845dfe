"""A server with tools that leave marks in a folder while they work.

python tool_server.py FOLDER mcp|fastmcp plain|supervised stdio|PORT
"""

import asyncio
import itertools
import os
import sys
import time
from pathlib import Path

import stoppable
from stoppable.adapters.mcp import names, supervise

FOLDER, FRAMEWORK, KIND, TRANSPORT = Path(sys.argv[1]), *sys.argv[2:]
(FOLDER / "pid").write_text(str(os.getpid()))

if FRAMEWORK == "mcp":
    from mcp.server.mcpserver import Context, MCPServer

    server = MCPServer("marks")
else:
    from fastmcp import Context
    from fastmcp import FastMCP as MCPServer

    server = MCPServer("marks")


def mark(who: str) -> None:
    """Leave one mark, which is an effect."""
    with (FOLDER / f"{who} marks").open("a") as marks:
        marks.write("x")


def is_released(who: str) -> bool:
    """Return whether the test lets the tool end."""
    return (FOLDER / f"{who} released").exists()


@server.tool()
async def quick() -> str:
    """Return at once."""
    return "quick done"


@server.tool()
async def hold(who: str) -> str:
    """Work until released, and await."""
    while not is_released(who):
        mark(who)
        await asyncio.sleep(0.01)
    return f"held for {who}"


@server.tool()
def work(who: str) -> str:
    """Work until released, on a thread, and look at nothing."""
    while not is_released(who):
        mark(who)
        time.sleep(0.01)
    return f"worked for {who}"


@server.tool()
def careful(who: str) -> str:
    """Work until released, on a thread, and check for the stop."""
    try:
        while not is_released(who):
            mark(who)
            stoppable.append_partial("step ")
            stoppable.sync.sleep(0.01)
    finally:
        (FOLDER / f"{who} ended").touch()
    return f"worked for {who}"


@server.tool()
async def report(who: str, ctx: Context) -> str:
    """Report progress until released."""
    for number in itertools.count(1):
        mark(who)
        await ctx.report_progress(number, None, f"step {number}")
        if is_released(who):
            return f"reported for {who}"
        await asyncio.sleep(0.01)
    raise AssertionError


@server.tool()
def fail(who: str) -> str:
    """Fail."""
    raise ValueError(f"nothing for {who}")


async def note_cuts(ctx, call_next):
    """Say in a file that a cancel has cut the task of a call, which may still have a thread."""
    try:
        return await call_next(ctx)
    except asyncio.CancelledError:
        (FOLDER / f"{ctx.params['arguments']['who']} cut").touch()
        raise


if __name__ == "__main__":
    if KIND == "supervised":
        names.middleware_of(server).append(note_cuts)
        # A busy machine takes its time.
        supervise(server, policy=stoppable.Policy(grace=100, cancel=100, kill=100))
    if TRANSPORT == "stdio":
        server.run(transport="stdio")
    elif FRAMEWORK == "mcp":
        server.run(transport="streamable-http", port=int(TRANSPORT))
    else:
        server.run(transport="http", port=int(TRANSPORT), show_banner=False)

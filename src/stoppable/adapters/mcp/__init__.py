"""MCP: a stop reaches the tool calls of clients and servers, over every transport, with mcp 2 and FastMCP 4.

``install()`` makes each tool call of a client a part of the run that makes it. ``supervise(server)`` makes each tool
call that a server gets a run, so that a cancel by any client is a stop.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import mcp as _mcp  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"mcp is not installed: {_pip_install('mcp')}", name=_error.name) from _error

from stoppable.adapters.mcp.client import install
from stoppable.adapters.mcp.server import supervise

__all__ = ["install", "supervise"]

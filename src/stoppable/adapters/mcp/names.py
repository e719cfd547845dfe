"""The names of mcp and FastMCP that this adapter needs, and what a version lacks of them.

The middleware of servers is public, and marked as provisional. Private is one name of FastMCP: the server of the SDK
that it is built on.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from stoppable.adapters import _upstream
from stoppable.adapters._upstream import find

CLIENT_SESSION: Any = find("mcp.client.session:ClientSession")
HTTP_TRANSPORT: Any = find("mcp.client.streamable_http:StreamableHTTPTransport")
TRANSPORT_METHODS = ("handle_get_stream", "post_writer", "terminate_session")
"""What a connection over HTTP does beside the calls that are made on it."""

SERVER_SESSION: Any = find("mcp.server.session:ServerSession")

_FUNCTIONS = {
    "mcp.client.session:ClientSession.call_tool": ("self", "name", "arguments", ..., "meta"),
    "mcp.client.session:ClientSession.send_request": ("self", "request", "result_type", "request_read_timeout_seconds"),
    "mcp.client.session:ClientSession.server_capabilities": (),
    **{f"mcp.client.streamable_http:StreamableHTTPTransport.{name}": ("self", "client") for name in TRANSPORT_METHODS},
    "mcp.server.session:ServerSession.report_progress": ("self", "progress", "total", "message"),
    "mcp.server.session:ServerSession.send_progress_notification": ("self", "progress_token", "progress"),
    "mcp.server.context:ServerMiddleware.__call__": ("self", "ctx", "call_next"),
    "mcp.shared.exceptions:MCPError": (),
    "mcp_types:Request": (),
}
"""What is called or wrapped, with the parameters that this adapter relies on."""


def missing() -> list[str]:
    """Return the names that the installed version of mcp lacks, or has in another form."""
    return _upstream.missing(_FUNCTIONS)


def middleware_of(server: Any) -> list[Any]:
    """Return the middleware of the SDK that every message to a server passes; the first is the outermost."""
    if type(server).__module__.partition(".")[0] == "fastmcp":  # it has middleware of its own, which sees less
        server = getattr(server, "_mcp_server", None)
        if server is None:
            version = importlib.metadata.version("fastmcp")
            raise ImportError(
                f"fastmcp {version} has no FastMCP._mcp_server: install 4.0 or newer, or a newer stoppable"
            )
    middleware = getattr(server, "middleware", None)
    if not isinstance(middleware, list):
        raise TypeError(f"{server!r:.60} is not an MCP server: use an MCPServer, a low-level Server, or a FastMCP")
    return middleware

"""A plain server says its port on standard output, and serves until it is killed."""

from __future__ import annotations

import asyncio
import socket

import uvicorn


def bound() -> tuple[socket.socket, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


def serve(app: object, listener: socket.socket | None = None) -> None:
    """Serve an app as its documentation does, with uvicorn."""
    listener = listener or bound()[0]
    print(listener.getsockname()[1], flush=True)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    asyncio.run(server.serve(sockets=[listener]))

"""Serves an app that is measured: prints its port, and tells its CPU time and memory at /usage."""

from __future__ import annotations

import time
from typing import Any

import uvicorn

from machine import resident_bytes


class _Server(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)


def serve(app: Any, **options: Any) -> None:
    """Serve until killed."""
    config = uvicorn.Config(
        _with_usage(app),
        port=0,
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        backlog=4096,
        **options,
    )
    _Server(config).run()


def _with_usage(app: Any) -> Any:
    async def asked(_: Any, __: Any, send: Any) -> None:
        told = b"%d %d" % (time.process_time_ns(), resident_bytes())
        headers = [(b"content-length", b"%d" % len(told))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": told})

    def chosen(scope: Any, receive: Any, send: Any) -> Any:
        # Not a coroutine of its own, which every stream would keep.
        return (asked if scope.get("path") == "/usage" else app)(scope, receive, send)

    return chosen

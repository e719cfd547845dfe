"""stoppable's routes and web UI for an ADK app: below its address, or on a separate port and thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI

from stoppable import to_thread
from stoppable.adapters.adk.routes import routes
from stoppable.adapters.adk.sessions import Pending
from stoppable.server import create_app
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.adapters.adk")

_START_SECONDS = 30.0
_END_SECONDS = 5
_STEP_SECONDS = 0.005


class Control:
    """Makes the apps that show and stop the runs of an ADK app."""

    def __init__(self, supervisor: Supervisor, pending: Pending, api_key: str | None) -> None:
        self._supervisor, self._pending, self._api_key = supervisor, pending, api_key

    def app(self) -> FastAPI:
        """Return an app with the routes of sessions, all of ``/runs`` and the web UI."""
        sessions = APIRouter()
        sessions.routes.extend(routes(self._supervisor, self._pending))
        return create_app(self._supervisor, api_key=self._api_key, routers=[sessions])

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve it on a thread, so that an async tool that blocks the loop of the agents does not delay a stop."""
        listener = socket.create_server((host, port))
        url = "http://{}:{}".format(*listener.getsockname()[:2])
        config: Any = {"log_config": None, "access_log": False, "lifespan": "off", "ws": "none"}
        server = uvicorn.Server(uvicorn.Config(self.app(), timeout_graceful_shutdown=_END_SECONDS, **config))
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="stoppable-control-port", daemon=True
        )
        thread.start()
        try:
            async with asyncio.timeout(_START_SECONDS):
                while not server.started:  # noqa: ASYNC110 - uvicorn has nothing else to wait for
                    await asyncio.sleep(_STEP_SECONDS)
            _logger.info("runs are shown and stopped at %s", url)
            yield url
        finally:
            server.should_exit = True
            await to_thread(thread.join, _START_SECONDS)
            listener.close()

"""Stop any run over HTTP: a standalone app, a router for your app, and ``serve``."""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import fastapi as _fastapi  # noqa: F401
    import orjson as _orjson  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(
        f"the server needs {_error.name}, which is not installed: {_pip_install('server')}", name=_error.name
    ) from _error

from stoppable.server.access import Principal, Scope
from stoppable.server.app import create_app, router
from stoppable.server.backend import Host
from stoppable.server.hosted_agents import AgentLoop
from stoppable.server.limits import ServerLimits
from stoppable.server.service import Service, serve
from stoppable.server.sse.streams import EventEncoder, EventStreams, Message
from stoppable.server.surfaces.ag_ui import ag_ui
from stoppable.server.surfaces.langgraph_api import langgraph_api
from stoppable.server.surfaces.openai_api import openai_api
from stoppable.server.surfaces.vercel_ai import vercel_ai
from stoppable.server.web_ui import ui

__all__ = [
    "AgentLoop",
    "EventEncoder",
    "EventStreams",
    "Host",
    "Message",
    "Principal",
    "Scope",
    "ServerLimits",
    "Service",
    "ag_ui",
    "create_app",
    "langgraph_api",
    "openai_api",
    "router",
    "serve",
    "ui",
    "vercel_ai",
]

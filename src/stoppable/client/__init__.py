"""Clients of a stoppable server: ``Client`` for blocking code, ``AsyncClient`` for async code."""

try:
    import httpx as _httpx  # noqa: F401 - asked for here, so that a missing extra is one clear sentence
except ModuleNotFoundError:
    raise ModuleNotFoundError('the client needs an extra: pip install "stoppable[client]"', name="httpx") from None

from stoppable.client.agents import AgentInfo
from stoppable.client.asynchronous import AsyncClient
from stoppable.client.blocking import Client
from stoppable.client.changes import Change
from stoppable.client.errors import NotAllowed, ServerError, ServerUnreachable
from stoppable.client.runs import AsyncClientRun, ClientRun

__all__ = [
    "AgentInfo",
    "AsyncClient",
    "AsyncClientRun",
    "Change",
    "Client",
    "ClientRun",
    "NotAllowed",
    "ServerError",
    "ServerUnreachable",
]

"""What routers and services of your own have of the server that they are part of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, Unpack

from fastapi import APIRouter, Request

from stoppable._engine.handle import RunHandle
from stoppable.server.backend import Backend
from stoppable.server.principal import Principal, Scope, caller_of
from stoppable.server.request_body import body_of
from stoppable.supervisor import StartOptions, Supervisor


class Host:
    """A server, for what it is extended with."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def supervisor(self) -> Supervisor:
        """Starts, finds and stops the runs of this server."""
        return self._backend.supervisor

    async def start(self, agent: Callable[..., Any], *args: Any, **options: Unpack[StartOptions]) -> RunHandle[Any]:
        """Start an agent where those of this server are executed: an async one on the loop of the agents.

        The run is in the store when this returns. The handle may be awaited on any loop; what a generator agent yields
        is in ``events()``.
        """
        run_id, _ = await self._backend.start_agent(agent, args, options)
        return self.supervisor.handle(run_id)

    async def body(self, request: Request) -> bytes:
        """Return the body of a request to a route of yours, which must be JSON and within the limits of this server."""
        return await body_of(request, self._backend.limits) or b""

    @staticmethod
    def caller(request: Request, scope: str = Scope.READ) -> Principal:
        """Return who made a request to a route of yours, or raise the 403 that says what is missing."""
        return caller_of(request, Scope(scope))


Routers: TypeAlias = Sequence[APIRouter | Callable[[Host], APIRouter]]
"""Routes of your own, or functions that make them."""

Services: TypeAlias = Sequence[Callable[[Host], AbstractAsyncContextManager[Any]]]
"""What runs beside the server: entered once the supervisor is open, left before it is closed."""

"""The routes for an app that you already have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute

from stoppable.server.backend import Backend
from stoppable.server.limits import ServerLimits
from stoppable.server.origins import preflight
from stoppable.server.principal import Principal, admit
from stoppable.server.registry import Agents, Registry
from stoppable.server.route import guarded_route
from stoppable.server.run_routes import RunRoutes
from stoppable.server.stop_routes import StopRoutes
from stoppable.supervisor import Supervisor

PrincipalDependency: TypeAlias = Callable[..., Principal | Awaitable[Principal]]


def router(
    supervisor: Supervisor,
    agents: Agents = None,
    principal: PrincipalDependency | None = None,
    *,
    limits: ServerLimits | None = None,
    allowed_origins: Collection[str] = (),
) -> APIRouter:
    """Return routes to include in a FastAPI app, under any prefix.

    ``principal`` is a dependency of that app which returns a Principal from whatever authentication it has. Async
    agents run on the loop of the app. The app opens the supervisor itself, in its lifespan.
    """
    if principal is None:
        raise TypeError("a router needs a principal: a dependency that returns whose runs the caller may see")
    backend = Backend(supervisor=supervisor, registry=Registry(agents), limits=limits or ServerLimits())
    inner = routes(backend, principal, allowed_origins, tells_origins=True)
    if not allowed_origins:
        return inner
    outer = APIRouter()
    outer.include_router(inner)
    # A browser sends these without credentials, so they stand before the principal.
    for path in dict.fromkeys(route.path for route in inner.routes if isinstance(route, APIRoute)):
        outer.add_api_route(path, preflight(frozenset(allowed_origins)), methods=["OPTIONS"], include_in_schema=False)
    return outer


def routes(
    backend: Backend, principal: PrincipalDependency, allowed_origins: Collection[str], *, tells_origins: bool = False
) -> APIRouter:
    """Return the routes of a backend, behind a principal; they may tell browsers themselves which origins may read."""

    async def remember(request: Request, found: Any = Depends(principal)) -> None:  # noqa: B008 - FastAPI's way
        admit(request, found)

    kind = guarded_route(backend.limits, frozenset(allowed_origins), tells_origins=tells_origins)
    made = APIRouter(dependencies=[Depends(remember)], route_class=kind)
    add_routes(made, backend)
    return made


def add_routes(made: APIRouter, backend: Backend) -> None:
    """Add the routes of a backend; the framework tries them in this order, and a stop is what must be fast."""
    StopRoutes(backend).add_to(made)
    RunRoutes(backend).add_to(made)

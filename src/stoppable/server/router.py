"""The routes for an app that you already have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

from fastapi import APIRouter, Depends, Request

from stoppable.server.desk import FrontDesk
from stoppable.server.guarded import guarded_route
from stoppable.server.limits import ServerLimits
from stoppable.server.principal import Principal, admit
from stoppable.server.registry import Agents, Registry
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
    desk = FrontDesk(supervisor=supervisor, registry=Registry(agents), limits=limits or ServerLimits())
    return routes(desk, principal, allowed_origins)


def routes(desk: FrontDesk, principal: PrincipalDependency, allowed_origins: Collection[str]) -> APIRouter:
    """Return the routes of a desk, behind a principal."""

    async def remember(request: Request, found: Any = Depends(principal)) -> None:  # noqa: B008 - FastAPI's way
        admit(request, found)

    made = APIRouter(
        dependencies=[Depends(remember)], route_class=guarded_route(desk.limits, frozenset(allowed_origins))
    )
    add_routes(made, desk)
    return made


def add_routes(made: APIRouter, desk: FrontDesk) -> None:
    """Add the routes of a desk; the framework tries them in this order, and a stop is what must be fast."""
    StopRoutes(desk).add_to(made)
    RunRoutes(desk).add_to(made)

"""The ASGI app: a standalone server, or a router for an app that you already have."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, TypeAlias

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Lifespan

import stoppable
from stoppable._engine.threads import to_thread
from stoppable.errors import InvalidArgument, StoppableError
from stoppable.server import access, schemas
from stoppable.server.access import (
    ACCEPTED_HEADERS,
    EXPOSED_HEADERS,
    LOOPBACK,
    METHODS,
    Guard,
    Identify,
    Principal,
    admit,
    answer_to,
    check_origin,
    guarded_route,
    preflight,
)
from stoppable.server.backend import Backend, Host, Routers, Services
from stoppable.server.hosted_agents import AgentLoop, Agents, Registry
from stoppable.server.limits import ServerLimits, Shares
from stoppable.server.logs import run_log
from stoppable.server.responses import Problem, json_response, problem_of_status, problem_of_validation
from stoppable.server.routes import RunRoutes, StopRoutes
from stoppable.server.schemas import answer, errors
from stoppable.server.web_ui import add_button, ui
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

    ``principal`` is a FastAPI dependency that returns a Principal, based on your app's authentication. Async agents run
    on the app's loop. The supervisor is opened when your app starts, unless your app has opened it, and closed when it
    ends. The file of the button is served too, to everybody: ``/ui/stoppable-button.js`` below the prefix.
    """
    if principal is None:
        raise TypeError("a router needs a principal: a dependency that returns whose runs the caller may see")
    backend = Backend(supervisor=supervisor, registry=Registry(agents), limits=limits or ServerLimits())
    inner = routes(backend, principal, allowed_origins, tells_origins=True, lifespan=lambda _: _opening(supervisor))
    add_button(inner)
    if not allowed_origins:
        return inner
    outer = APIRouter()
    outer.include_router(inner)
    # A browser sends these without credentials, so they come before the principal.
    for path in dict.fromkeys(route.path for route in inner.routes if isinstance(route, APIRoute)):
        outer.add_api_route(path, preflight(frozenset(allowed_origins)), methods=["OPTIONS"], include_in_schema=False)
    return outer


def routes(
    backend: Backend,
    principal: PrincipalDependency,
    allowed_origins: Collection[str],
    *,
    tells_origins: bool = False,
    lifespan: Lifespan[Any] | None = None,
) -> APIRouter:
    """Return the routes of a backend, behind a principal; with ``allowed_origins`` they answer CORS requests."""

    async def remember(request: Request, caller: Any = Depends(principal)) -> AsyncIterator[None]:  # noqa: B008 - FastAPI's way
        admit(request, caller)
        with backend.shares.request(caller.owner, request.scope):
            yield

    kind = guarded_route(backend.limits, frozenset(allowed_origins), tells_origins=tells_origins)
    guarded = APIRouter(dependencies=[Depends(remember)], route_class=kind, lifespan=lifespan)
    add_routes(guarded, backend)
    return guarded


def add_routes(router: APIRouter, backend: Backend) -> None:
    """Add the routes of a backend; stops come first, because the framework tries routes in this order."""
    StopRoutes(backend).add_to(router)
    RunRoutes(backend).add_to(router)


@contextlib.asynccontextmanager
async def _opening(supervisor: Supervisor) -> AsyncIterator[None]:
    """Open a supervisor for an app that has not opened it itself; FastAPI enters the app's own lifespan first."""
    async with contextlib.AsyncExitStack() as stack:
        if not supervisor.is_open:
            await stack.enter_async_context(supervisor)
        yield


_DESCRIPTION = "Start agents as runs, follow them, and stop exactly the run you mean, with everything it started."


def create_app(
    supervisor: Supervisor,
    agents: Agents = None,
    *,
    principal: PrincipalDependency | None = None,
    api_key: str | None = None,
    agent_loop: AgentLoop | None = None,
    limits: ServerLimits | None = None,
    allowed_origins: Collection[str] = (),
    allowed_hosts: Collection[str] = (),
    routers: Routers = (),
    services: Services = (),
) -> FastAPI:
    """Return an ASGI app that starts, shows and stops runs.

    It opens the supervisor when it starts, unless it is open already, and closes what it opened when it ends. Without a
    key or a principal it answers only requests to local host names and to ``allowed_hosts``. With an ``agent_loop``,
    async agents run there instead of on the app's loop.

    ``routers`` add your own routes behind the same authentication; ``Host.caller`` returns the caller. ``services`` are
    entered when the app starts and left when it ends.
    """
    if principal is not None and api_key is not None:
        raise InvalidArgument("give a principal or an api_key, not both: the principal may check a key itself")
    bounds = limits or ServerLimits()
    known_hosts = frozenset({*LOOPBACK, *map(str.lower, allowed_hosts)})
    backend = Backend(
        supervisor=supervisor,
        registry=Registry(agents),
        limits=bounds,
        agent_loop=agent_loop,
        known_hosts=known_hosts,
    )
    identify: Identify | None = None
    if principal is None:
        identify = access.local_caller() if api_key is None else access.holder_of(api_key)
    host = Host(backend, identify)
    backend.services = tuple(partial(service, host) for service in services)
    app = FastAPI(
        title="stoppable",
        version=stoppable.__version__,
        description=_DESCRIPTION,
        lifespan=lambda _: lifespan(backend),
        docs_url=None,  # its scripts would come from another origin
        redoc_url=None,
        redirect_slashes=False,  # the target would depend on the client's Host header
    )
    app.state.backend = backend
    is_open = principal is None and api_key is None
    app.add_middleware(Guard, limits=bounds, allowed_hosts=known_hosts if is_open else None)
    if allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allowed_origins),
            allow_methods=METHODS,
            allow_headers=ACCEPTED_HEADERS,
            expose_headers=EXPOSED_HEADERS,
        )
    if principal is None:
        guarded = app.router
        guarded.route_class = guarded_route(bounds, frozenset(allowed_origins), identify)
        add_routes(guarded, backend)
        guarded.route_class = APIRoute
    else:
        guarded = routes(backend, principal, allowed_origins)
        app.include_router(guarded)
    for extra in routers:
        further = extra if isinstance(extra, APIRouter) else extra(host)
        admission = _admission(backend.shares, identify, principal, frozenset(allowed_origins))
        app.include_router(further, dependencies=[Depends(admission)])
    _add_health(app, backend)
    app.include_router(ui())
    _add_errors(app, guarded)
    if api_key is not None:
        _document_key(app)
    return app


@contextlib.asynccontextmanager
async def lifespan(backend: Backend) -> AsyncIterator[None]:
    """Open the supervisor, the agent loop and the services, and close them at the end."""
    async with contextlib.AsyncExitStack() as stack:
        if backend.agent_loop is not None:
            await to_thread(backend.agent_loop.open)
            stack.push_async_callback(to_thread, backend.agent_loop.close)
        if not backend.supervisor.is_open:
            await stack.enter_async_context(backend.supervisor)
        await stack.enter_async_context(run_log(backend.supervisor))
        stack.callback(backend.streams.close)
        for service in backend.services:
            await stack.enter_async_context(service())
        yield


@contextlib.asynccontextmanager
async def local_backend(agents: Agents, supervisor: Supervisor) -> AsyncIterator[Backend]:
    """Open what a server has behind its routes, for a protocol that needs none."""
    backend = Backend(supervisor=supervisor, registry=Registry(agents), limits=ServerLimits(), agent_loop=AgentLoop())
    async with lifespan(backend):
        yield backend


def _admission(
    shares: Shares, identify: Identify | None, principal: PrincipalDependency | None, origins: Collection[str]
) -> Callable[..., Any]:
    """Return the dependency that authenticates callers of your own routes."""

    async def admit_dependency(request: Request, caller: Any = Depends(principal)) -> AsyncIterator[None]:  # noqa: B008 - FastAPI's way
        check_origin(request.method, request.headers, origins)
        admit(request, caller)
        with shares.request(caller.owner, request.scope):
            yield

    async def admit_request(request: Request) -> None:
        check_origin(request.method, request.headers, origins)
        assert identify is not None, "there is a principal otherwise"
        admit(request, identify(request))

    return admit_dependency if identify is None else admit_request


def _document_key(app: FastAPI) -> None:
    document = app.openapi()
    document.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    for path in ("/healthz", "/readyz"):
        document["paths"][path]["get"]["security"] = []


def _add_health(app: FastAPI, backend: Backend) -> None:
    async def healthz() -> Response:
        """Report that the server answers."""
        return json_response({"status": "ok"})

    async def readyz() -> Response:
        """Report whether the store answers and the server accepts new runs."""
        if await backend.is_ready():
            return json_response({"status": "ready"})
        return Problem(503, "not_ready", "the store does not answer, or the server is shutting down").to_response()

    responses: dict[int | str, dict[str, Any]] = {200: answer(schemas.Health, "The server is ready."), **errors()}
    for path, handler in (("/healthz", healthz), ("/readyz", readyz)):
        app.add_api_route(path, handler, response_class=Response, responses=responses, tags=["health"])
        app.add_api_route(path, handler, methods=["HEAD"], response_class=Response, include_in_schema=False)


def _methods(path: str, routes: Sequence[BaseRoute]) -> str:
    """Return all methods of a path; the framework lists only those of one route."""
    matching = [route for route in routes if isinstance(route, Route) and route.path_regex.match(path)]
    return ", ".join(sorted({method for route in matching for method in route.methods or ()}))


def _add_errors(app: FastAPI, guarded: APIRouter) -> None:
    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for HTTPException only"
        if isinstance(error, Problem):
            return error.to_response()
        headers = error.headers
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"Allow": _methods(get_route_path(request.scope), [*app.routes, *guarded.routes])}
        return problem_of_status(error.status_code, str(error.detail), headers).to_response()

    async def stoppable_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, StoppableError), "registered for StoppableError only"
        return answer_to(request, error)

    async def validation_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError), "registered for RequestValidationError only"
        return problem_of_validation(error).to_response()

    async def unexpected_error(_: Request, __: Exception) -> Response:
        return Problem(500, "internal", "internal error: see the log of the server").to_response()

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(StoppableError, stoppable_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(Exception, unexpected_error)

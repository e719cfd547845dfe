"""The app: the routes, the page, and the runs behind them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

import stoppable
from stoppable.server import Principal, router, ui
from user_code.agents import Agents, create_tables
from user_code.routes import UserCode, agent_routes, current_user, history_routes, run_routes
from user_code.settings import Settings

_PAGE = Path(__file__).parent / "page"
_HOSTS = ["127.0.0.1", "localhost"]
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def create_app(settings: Settings) -> FastAPI:
    """Return the app; several with the same folder are replicas, each of which stops the runs of all."""
    supervisor = stoppable.Supervisor(settings.store, unpickle=False)  # what workers send is data of their users
    runs = UserCode(supervisor=supervisor, settings=settings, agents=Agents(settings.database))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        create_tables(settings.database)
        if settings.isolation != "process":
            stoppable.instrument()  # threads and processes that agents start take part in their runs
        async with supervisor:
            yield
        runs.streams.close()

    async def principal(user: Annotated[str, Depends(current_user)]) -> Principal:
        return Principal(owner=user, actor=user, scopes=["read", "stop"])

    app = FastAPI(title="User code", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(SameOrigin)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)
    for made in (run_routes(runs), history_routes(runs), agent_routes(runs)):
        app.include_router(made)
    # The routes and the page of stoppable beside those of the app: receipts, time lines, bulk stops.
    app.include_router(router(supervisor, principal=principal), prefix="/stoppable")
    app.include_router(ui("/stoppable"))
    app.mount("/page", StaticFiles(directory=_PAGE))

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        content = (_PAGE / "index.html").read_text()
        return Response(content, headers={"Content-Security-Policy": _POLICY}, media_type="text/html")

    return app


class SameOrigin:
    """Refuses requests that pages of other origins send: this app executes what it is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Request(scope).headers
            origin = headers.get("origin")
            if origin is not None and urlsplit(origin).netloc != headers.get("host"):
                await JSONResponse({"detail": "This page may not do that"}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)

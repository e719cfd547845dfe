"""An ADK app whose every run can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from google.adk.runners import Runner
from starlette.routing import Mount

from stoppable import InvalidArgument, ThreadPoolExecutor, instrument
from stoppable.adapters.adk import names
from stoppable.adapters.adk.connections import Connections, looks_for_disconnect
from stoppable.adapters.adk.control import Control
from stoppable.adapters.adk.routes import routes
from stoppable.adapters.adk.runners import OnDisconnect, wrap
from stoppable.adapters.adk.sessions import Pending
from stoppable.supervisor import Supervisor


def install(
    app: FastAPI,
    supervisor: Supervisor | None = None,
    *,
    on_disconnect: OnDisconnect | None = None,
    tool_threads: bool = True,
    control_port: int | None = None,
    control_host: str = "127.0.0.1",
    api_key: str | None = None,
) -> Supervisor:
    """Make the runs of an ADK app stoppable, and return the supervisor.

    ``app`` is what ``get_fast_api_app`` returned. It gets ``POST …/sessions/{id}:cancel`` and ``GET
    …/sessions/{id}/stream``, and opens the supervisor when it starts, unless that is open; without one the runs are
    kept in memory. ``on_disconnect`` decides about a run whose client leaves: ``keep`` lets it go on, ``stop`` stops
    it. ``stop`` is the default where ``adk web`` is served, because the Stop button of its page only disconnects.

    Threads and processes that tools start belong to their run, as with ``stoppable.instrument()``.

    ``/stoppable/`` shows and stops the runs, for requests to local host names or with the ``api_key``. ``control_port``
    serves the same pages, and ``:cancel``, on a separate thread, for apps whose async tools block the event loop.
    """
    installed: Supervisor | None = getattr(app.state, "stoppable", None)
    if installed is not None:
        if supervisor in {None, installed}:
            return installed
        raise InvalidArgument("stoppable is already installed in this app, by services.py or an earlier install()")
    server = names.server_of(app)
    instrument()
    app.state.stoppable = made = supervisor or Supervisor()
    policy = on_disconnect or ("stop" if _serves_page(app) else "keep")
    pending = Pending()
    control = Control(made, pending, api_key)
    get_runner, lifespan = server.get_runner_async, app.router.lifespan_context

    async def get_runner_async(app_name: str) -> Runner:
        runner = await get_runner(app_name)
        return wrap(runner, made, on_disconnect=policy, tool_threads=tool_threads, app_name=app_name)

    @contextlib.asynccontextmanager
    async def living(app_: FastAPI) -> AsyncIterator[Any]:
        # Before anything runs, so that what async tools pass to asyncio.to_thread belongs to their run.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        async with contextlib.AsyncExitStack() as stack:
            if not made.is_open:
                await stack.enter_async_context(made)
            if control_port is not None:
                await stack.enter_async_context(control.listening(control_host, control_port))
            yield await stack.enter_async_context(lifespan(app_))

    server.get_runner_async = get_runner_async
    app.router.lifespan_context = living
    run_route: Any = next(route for route in app.router.routes if getattr(route, "path", None) == "/run")
    app.add_middleware(Connections, pending=pending, watches=not looks_for_disconnect(run_route.endpoint))
    # First, because create-session would take "{id}:cancel" for the id of a new session.
    app.router.routes[:0] = [*routes(made, pending), Mount("/stoppable", control.app())]
    return made


def _serves_page(app: FastAPI) -> bool:
    return any(getattr(route, "path", "").startswith("/dev-ui") for route in app.router.routes)

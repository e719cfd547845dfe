"""An ADK app whose every run can be stopped: its endpoints, and the web UI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import APIRouter, FastAPI, HTTPException, Query
from fastapi.routing import APIRoute
from google.adk.runners import Runner
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Mount

from stoppable import EventType, InvalidArgument, Mode, Status, ThreadPoolExecutor, instrument, to_thread
from stoppable.adapters.adk import names
from stoppable.adapters.adk.runners import OnDisconnect, wrap
from stoppable.adapters.adk.sealing import CODE, MESSAGE
from stoppable.adapters.adk.sessions import RUN_ID_HEADER, Connections, PendingRuns, Session, looks_for_disconnect
from stoppable.adapters.adk.turns import EVENT
from stoppable.records import to_json
from stoppable.server import create_app
from stoppable.supervisor import Supervisor

_SESSION = "/apps/{app_name}/users/{user_id}/sessions/{session_id}"

_Seconds = Annotated[float | None, Query(ge=0, le=3600, allow_inf_nan=False)]
_RunId = Annotated[str | None, Query(alias="runId")]
_IfUnknown = Annotated[Literal["wait"] | None, Query(alias="ifUnknown")]

NOTHING_RUNS = "Nothing runs in session {}."


def routes(supervisor: Supervisor, pending: PendingRuns) -> list[APIRoute]:
    """Return the routes of all sessions."""
    router = APIRouter()

    @router.post(_SESSION + ":cancel")
    async def cancel_session(
        app_name: str,
        user_id: str,
        session_id: str,
        mode: Mode = Mode.GRACEFUL,
        reason: str = "cancelled",
        grace: _Seconds = None,
        wait: _Seconds = None,
        run_id: _RunId = None,
        if_unknown: _IfUnknown = None,
    ) -> JSONResponse:
        """Stop what runs in a session, with everything it started.

        With ``wait`` it answers when the runs are over, or after so many seconds. ``runId`` selects one run; if that is
        over, its receipt is final. If nothing runs, ``ifUnknown=wait`` keeps the stop for the next run.
        """
        session = Session(supervisor, pending, app_name, user_id, session_id)
        how: dict[str, Any] = {"mode": mode, "reason": reason, "actor": user_id, "grace": grace, "wait": wait}
        stopped = await session.stop(run_id, is_awaited=if_unknown == "wait", **how)
        entries = [{"runId": one.run_id, "status": one.status, "receipt": to_json(one)} for one in stopped]
        if entries:
            return JSONResponse({**entries[0], "others": entries[1:]})
        if stopped.waits_until is not None:
            return JSONResponse({"runId": None, "status": "held"}, 202)
        raise HTTPException(404, NOTHING_RUNS.format(session_id))

    @router.get(_SESSION + "/stream")
    async def follow_session(app_name: str, user_id: str, session_id: str, run_id: _RunId = None) -> StreamingResponse:
        """Send the events of what runs in a session, from its first, in the frames of ``/run_sse``."""
        newest_id = await Session(supervisor, pending, app_name, user_id, session_id).newest(run_id)
        if newest_id is None:
            raise HTTPException(404, NOTHING_RUNS.format(session_id))
        frames = _frames(supervisor, newest_id)
        return StreamingResponse(frames, media_type="text/event-stream", headers={RUN_ID_HEADER: newest_id})

    return [route for route in router.routes if isinstance(route, APIRoute)]


async def _frames(supervisor: Supervisor, run_id: str) -> AsyncIterator[str]:
    told_the_end = False
    async for event in supervisor.events(run_id):
        if event.type is EventType.PROGRESS and event.data["name"] == EVENT:
            wire = event.data["data"]["event"]
            told_the_end = told_the_end or wire.get("errorCode") == CODE
            yield _frame(wire)
    record = await supervisor.get(run_id)
    if record.status in {Status.STOPPED, Status.LOST} and not told_the_end:
        yield _frame({"author": record.name, "errorCode": CODE, "errorMessage": MESSAGE})


def _frame(wire: dict[str, Any]) -> str:
    return f"data: {json.dumps(wire, ensure_ascii=False)}\n\n"


_logger = logging.getLogger("stoppable.adapters.adk")

_START_SECONDS = 30.0
_END_SECONDS = 5
_STEP_SECONDS = 0.005


class ControlApps:
    """Makes the apps that show and stop the runs of an ADK app."""

    def __init__(self, supervisor: Supervisor, pending: PendingRuns, api_key: str | None) -> None:
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
    app.state.stoppable = own_supervisor = supervisor or Supervisor()
    policy = on_disconnect or ("stop" if _serves_page(app) else "keep")
    pending = PendingRuns()
    control = ControlApps(own_supervisor, pending, api_key)
    get_runner, lifespan = server.get_runner_async, app.router.lifespan_context

    async def get_runner_async(app_name: str) -> Runner:
        runner = await get_runner(app_name)
        return wrap(runner, own_supervisor, on_disconnect=policy, tool_threads=tool_threads, app_name=app_name)

    @contextlib.asynccontextmanager
    async def wrapped_lifespan(app_: FastAPI) -> AsyncIterator[Any]:
        # Before anything runs, so that what async tools pass to asyncio.to_thread belongs to their run.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        async with contextlib.AsyncExitStack() as stack:
            if not own_supervisor.is_open:
                await stack.enter_async_context(own_supervisor)
            if control_port is not None:
                await stack.enter_async_context(control.listening(control_host, control_port))
            yield await stack.enter_async_context(lifespan(app_))

    server.get_runner_async = get_runner_async
    app.router.lifespan_context = wrapped_lifespan
    run_route: Any = next(route for route in app.router.routes if getattr(route, "path", None) == "/run")
    app.add_middleware(Connections, pending=pending, watches=not looks_for_disconnect(run_route.endpoint))
    # First, because create-session would take "{id}:cancel" for the id of a new session.
    app.router.routes[:0] = [*routes(own_supervisor, pending), Mount("/stoppable", control.app())]
    return own_supervisor


def _serves_page(app: FastAPI) -> bool:
    return any(getattr(route, "path", "").startswith("/dev-ui") for route in app.router.routes)

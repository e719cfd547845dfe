"""The endpoints that ADK's server lacks: stop what runs in a session, and follow it again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, StreamingResponse

from stoppable import EventType, Mode, Status
from stoppable.adapters.adk.connections import RUN_ID_HEADER
from stoppable.adapters.adk.sealing import CODE, MESSAGE
from stoppable.adapters.adk.sessions import Pending, Session
from stoppable.adapters.adk.turn import EVENT
from stoppable.records import to_json
from stoppable.supervisor import Supervisor

_SESSION = "/apps/{app_name}/users/{user_id}/sessions/{session_id}"

_Seconds = Annotated[float | None, Query(ge=0, le=3600, allow_inf_nan=False)]
_RunId = Annotated[str | None, Query(alias="runId")]
_IfUnknown = Annotated[Literal["hold"] | None, Query(alias="ifUnknown")]

NOTHING_RUNS = "Nothing runs in session {}."


def routes(supervisor: Supervisor, pending: Pending) -> list[APIRoute]:
    """Return the routes of all sessions."""
    made = APIRouter()

    @made.post(_SESSION + ":cancel")
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
        over, its receipt is final. If nothing runs, ``ifUnknown=hold`` keeps the stop for the next run.
        """
        session = Session(supervisor, pending, app_name, user_id, session_id)
        how: dict[str, Any] = {"mode": mode, "reason": reason, "actor": user_id, "grace": grace, "wait": wait}
        stopped = await session.stop(run_id, is_held=if_unknown == "hold", **how)
        told = [{"runId": one.run_id, "status": one.status, "receipt": to_json(one)} for one in stopped]
        if told:
            return JSONResponse({**told[0], "others": told[1:]})
        if stopped.waits_until is not None:
            return JSONResponse({"runId": None, "status": "held"}, 202)
        raise HTTPException(404, NOTHING_RUNS.format(session_id))

    @made.get(_SESSION + "/stream")
    async def follow_session(app_name: str, user_id: str, session_id: str, run_id: _RunId = None) -> StreamingResponse:
        """Send the events of what runs in a session, from its first, in the frames of ``/run_sse``."""
        found = await Session(supervisor, pending, app_name, user_id, session_id).newest(run_id)
        if found is None:
            raise HTTPException(404, NOTHING_RUNS.format(session_id))
        frames = _frames(supervisor, found)
        return StreamingResponse(frames, media_type="text/event-stream", headers={RUN_ID_HEADER: found})

    return [route for route in made.routes if isinstance(route, APIRoute)]


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

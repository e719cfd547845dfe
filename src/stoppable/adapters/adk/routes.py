"""The endpoints that ADK's server lacks: stop what runs in a session, and follow it again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, StreamingResponse

import stoppable
from stoppable.adapters.adk.connections import RUN_ID_HEADER
from stoppable.adapters.adk.sealing import CODE, MESSAGE
from stoppable.adapters.adk.sessions import address, live_runs
from stoppable.records import to_json
from stoppable.supervisor import Supervisor

_SESSION = "/apps/{app_name}/users/{user_id}/sessions/{session_id}"

NOTHING_RUNS = "Nothing runs in session {}."


def routes(supervisor: Supervisor) -> list[APIRoute]:
    """Return the routes of all sessions."""
    made = APIRouter()

    @made.post(_SESSION + ":cancel")
    async def cancel_session(
        app_name: str,
        user_id: str,
        session_id: str,
        mode: str = "graceful",
        grace: float | None = None,
        wait: float | None = None,
        reason: str = "cancelled",
        run_id: str | None = Query(None, alias="runId"),
    ) -> JSONResponse:
        """Stop what runs in a session, with everything it started.

        With ``wait`` it answers when the runs are over, or after so many seconds. ``runId`` means one run, also one
        that is over: its receipt is final.
        """
        found = await live_runs(supervisor, app_name, user_id, session_id)
        if run_id is not None:
            found = [run_id] if await _is_of(supervisor, run_id, app_name, user_id, session_id) else []
        if not found:
            raise HTTPException(404, NOTHING_RUNS.format(session_id))
        try:
            receipts = [await supervisor.stop(one, mode, reason, user_id, grace, wait=wait) for one in found]
        except stoppable.InvalidArgument as error:
            raise HTTPException(422, str(error)) from error
        told = [{"runId": one.run_id, "status": one.status, "receipt": to_json(one)} for one in receipts]
        return JSONResponse({**told[0], "others": told[1:]})

    @made.get(_SESSION + "/stream")
    async def follow_session(
        app_name: str, user_id: str, session_id: str, run_id: str | None = Query(None, alias="runId")
    ) -> StreamingResponse:
        """Send the events of what runs in a session, from its first, in the frames of ``/run_sse``."""
        found = await live_runs(supervisor, app_name, user_id, session_id)
        if run_id is not None:
            found = [run_id] if await _is_of(supervisor, run_id, app_name, user_id, session_id) else []
        if not found:
            raise HTTPException(404, NOTHING_RUNS.format(session_id))
        frames = _frames(supervisor, found[0])
        return StreamingResponse(frames, media_type="text/event-stream", headers={RUN_ID_HEADER: found[0]})

    return [route for route in made.routes if isinstance(route, APIRoute)]


async def _is_of(supervisor: Supervisor, run_id: str, app_name: str, user_id: str, session_id: str) -> bool:
    """Return whether a run is one of a session."""
    try:
        record = await supervisor.get(run_id)
    except stoppable.RunNotFound:
        return False
    wanted = address(app_name, user_id, session_id)
    return record.owner == wanted["owner"] and all(record.labels.get(k) == v for k, v in wanted["labels"].items())


async def _frames(supervisor: Supervisor, run_id: str) -> AsyncIterator[str]:
    told_the_end = False
    async for event in supervisor.events(run_id):
        if event.type == "adk":
            wire = event.data["event"]
            told_the_end = told_the_end or wire.get("errorCode") == CODE
            yield _frame(wire)
    record = await supervisor.get(run_id)
    if record.status in {stoppable.Status.STOPPED, stoppable.Status.LOST} and not told_the_end:
        yield _frame({"author": record.name, "errorCode": CODE, "errorMessage": MESSAGE})


def _frame(wire: dict[str, Any]) -> str:
    return f"data: {json.dumps(wire, ensure_ascii=False)}\n\n"

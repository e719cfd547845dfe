"""The agents of a server over AG-UI, at ``/agui/NAME``: a thread is a conversation, and leaving its stream is a stop.

AG-UI has no message that cancels: ``HttpAgent.abortRun()`` and a Stop button of CopilotKit close the stream. Nobody can
come back to a stream, so the run is stopped at once, and the next run of the thread tells its client what was kept.
"""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from stoppable._core.values import RUN_ID, Policy, Status
from stoppable.errors import RunNotFound
from stoppable.records import RunRecord
from stoppable.server.access import Principal, Scope, caller_of, own_id
from stoppable.server.backend import Host
from stoppable.server.responses import Problem
from stoppable.server.surfaces import ag_ui_wire as wire
from stoppable.server.surfaces.inputs import arguments_of
from stoppable.server.surfaces.surface import POLICY, Surface, surface_route

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_QUESTION, _RUN = "ag_ui.question", "ag_ui.run"


def ag_ui(host: Host, *, policy: Policy = POLICY) -> APIRouter:
    """Return the routes of AG-UI for the agents of a server, for ``serve`` and ``create_app``.

    ``policy`` is that of the runs: by default a stop takes four seconds at most, because the next message of the same
    conversation waits for it.
    """
    router = APIRouter(prefix="/agui", route_class=surface_route(wire.spell))
    routes = _Routes(host, Surface(host, "ag_ui", policy))
    # Not in the document of our own routes: the protocol has one.
    options: dict[str, Any] = {"response_class": Response, "include_in_schema": False}
    router.add_api_route("/{agent:path}", routes.run, methods=["POST"], **options)
    router.add_api_route("/{path:path}", routes.unknown, methods=_METHODS, **options)
    return router


class _Routes:
    def __init__(self, host: Host, surface: Surface) -> None:
        self._host, self._surface = host, surface

    async def run(self, request: Request, agent: str) -> Response:
        """Start an agent, and answer with its events."""
        caller = caller_of(request, Scope.START)
        signature = self._surface.signature(agent)  # or a 404
        body, messages = await wire.read_input(self._host, request)
        run_id = await self._new_id(body.run_id, caller)
        question = body.question
        chat = wire.chat_of(body.messages)
        self._surface.check_room(caller)
        snapshots: list[list[dict[str, Any]]] = []
        place = 0

        async def arguments() -> Any:
            nonlocal place, messages, chat
            place = await self._surface.place()
            snapshots.extend(await self._snapshots(body, messages, caller))
            if snapshots:
                messages = snapshots[-1]
                chat = wire.chat_of([wire.Message.model_validate(one) for one in messages])
            text = next(one["content"] for one in reversed(chat) if one["role"] == "user")
            return arguments_of(signature, text, chat, body.thread_id)

        record = await self._surface.begin(
            caller,
            agent,
            make_arguments=arguments,
            run_id=run_id,
            conversation=body.thread_id,
            labels={_QUESTION: question, _RUN: body.run_id},
        )
        events = wire.RunEvents(body, messages, snapshots)
        tree_after = None if body.version is None else place
        return self._surface.stream(record, caller, events, stops=True, tree_after=tree_after)

    async def _new_id(self, run_id: str, caller: Principal) -> str:
        """Return the id of a run that a client has named; a stream cannot be entered again, so it must be new."""
        own = own_id(caller, run_id)
        if re.fullmatch(RUN_ID, own) is None:
            message = f"runId: {run_id!r:.80} is no id for a run: use letters, digits and . _ ~ : - (up to 115 of them)"
            raise Problem(422, "invalid_argument", message)
        try:
            await self._surface.record(own, caller)
        except RunNotFound:
            return own
        raise Problem(409, "run_conflict", f"runId: there is a run {run_id!r:.150} already: a new run needs a new id")

    async def _snapshots(
        self, body: wire.RunInput, messages: list[dict[str, Any]], caller: Principal
    ) -> list[list[dict[str, Any]]]:
        """Return the history as it is after a turn that was stopped, if the client does not know it."""
        record: RunRecord | None = await self._surface.last_turn(body.thread_id, caller.owner)
        if record is None or (record.status is Status.COMPLETED and record.stop is None):
            return []
        end = await self._surface.end(record)
        question, run_id = record.labels.get(_QUESTION), record.labels.get(_RUN)
        if end is None or not end.text or question is None or run_id is None:
            return []
        return wire.seal(messages, question, wire.message_of(run_id, end))

    async def unknown(self, request: Request) -> Response:
        """Refuse what is not here."""
        message = f"unknown request: {request.method} {request.url.path[:200]}; here is POST /agui/NAME, for each agent"
        raise Problem(404, "not_found", message)

"""The agents of a server for ``useChat`` of Vercel's AI SDK, at ``/vercel/NAME``: a chat is a conversation.

``stop()`` of the SDK only closes the connection, which stops the turn, but tells the page nothing more. A page that
asks ``/vercel/NAME/CHAT/stop`` reads on, and its stream ends once everything has ended, with what became of it. With
``on_disconnect="keep"`` a turn outlives its page, which may come back to it, and that is its only Stop button.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stoppable._core.values import Policy
from stoppable.records import RunRecord
from stoppable.server.access import Principal, Scope, caller_of
from stoppable.server.backend import Host
from stoppable.server.responses import PRIVATE, Problem, json_response
from stoppable.server.schemas import Seconds
from stoppable.server.surfaces import vercel_ai_wire as wire
from stoppable.server.surfaces.inputs import arguments_of
from stoppable.server.surfaces.surface import POLICY, Surface, surface_route

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_WAIT_LIMIT = 300.0


def vercel_ai(host: Host, *, policy: Policy = POLICY) -> APIRouter:
    """Return the routes for the AI SDK for the agents of a server, for ``serve`` and ``create_app``.

    ``policy`` is that of the runs: by default a stop takes four seconds at most, because the next message of the same
    chat waits for it.
    """
    router = APIRouter(prefix="/vercel", route_class=surface_route(Problem.to_response))
    routes = _Routes(host, Surface(host, "vercel", policy))
    # Not in the document of our own routes: the protocol has one.
    options: dict[str, Any] = {"response_class": Response, "include_in_schema": False}
    router.add_api_route("/{agent}/{chat:path}/stop", routes.stop, methods=["POST"], **options)
    router.add_api_route("/{agent}/{chat:path}/stream", routes.resume, methods=["GET"], **options)
    router.add_api_route("/{agent:path}", routes.answer, methods=["POST"], **options)
    router.add_api_route("/{path:path}", routes.unknown, methods=_METHODS, **options)
    return router


class _Routes:
    def __init__(self, host: Host, surface: Surface) -> None:
        self._host, self._surface = host, surface

    async def answer(self, request: Request, agent: str) -> Response:
        """Start an agent, and answer with the parts of its message; leaving that may stop it."""
        caller = caller_of(request, Scope.START)
        signature = self._surface.signature(agent)  # or a 404
        body = await wire.read_chat(self._host, request)
        chat = wire.chat_of(body.messages)
        arguments = arguments_of(signature, chat[-1]["content"], chat, body.id)
        self._surface.check_room(caller)
        place = await self._surface.place()
        record = await self._surface.begin(caller, agent, arguments, conversation=body.id)
        return self._stream(record, caller, stops=body.on_disconnect == "stop", after=place)

    async def stop(
        self,
        request: Request,
        agent: str,
        chat: str,
        wait: Annotated[Seconds, Query(le=_WAIT_LIMIT)] = 0.0,
    ) -> Response:
        """Stop the turn of a chat, as ``POST /runs/{id}/stop`` does; its streams tell the end."""
        caller = caller_of(request, Scope.STOP)
        options = await wire.read_stop(self._host, request)
        await self._surface.wait_for_start(chat, caller.owner)
        record = await self._last_turn(agent, chat, caller)
        if record is None:
            raise Problem(404, "chat_not_found", f"agent {agent[:150]!r} has no chat with id {chat[:150]!r}")
        receipt = await self._surface.stop_with(request, record, caller, options, wait)
        status = receipt.status.value if receipt.final else "stopping"
        stopped = {"runId": receipt.run_id, "status": status, "receipt": receipt}
        return json_response(stopped, 200 if receipt.final else 202, {"Stoppable-Run-Id": receipt.run_id})

    async def resume(self, request: Request, agent: str, chat: str) -> Response:
        """Answer with the parts of the turn that is at work, from its start; leaving that stream stops nothing."""
        caller = caller_of(request, Scope.READ)
        record = await self._last_turn(agent, chat, caller)
        if record is None or record.over:
            return Response(status_code=204, headers=PRIVATE)
        self._surface.check_room(caller)
        return self._stream(record, caller, stops=False, after=0)

    async def _last_turn(self, agent: str, chat: str, caller: Principal) -> RunRecord | None:
        self._surface.signature(agent)  # or a 404
        record = await self._surface.last_turn(chat, caller.owner)
        return None if record is None or record.name != agent else record

    def _stream(self, record: RunRecord, caller: Principal, *, stops: bool, after: int) -> Response:
        parts = wire.MessageParts()
        response = self._surface.stream(record, caller, parts, stops=stops, tree_after=after)
        response.headers[wire.HEADER[0]] = wire.HEADER[1]
        return response

    async def unknown(self, request: Request) -> Response:
        """Refuse what is not here."""
        message = f"unknown request: {request.method} {request.url.path[:200]}"
        raise Problem(404, "not_found", f"{message}; here is POST /vercel/NAME, for each agent")

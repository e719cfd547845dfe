"""The agents of a server behind the OpenAI API, at ``/v1``: a response is a run, and its cancel is a stop.

Leaving a stream, or a request that waits, stops the run too, unless the response is in the background: that is the only
cancel that chat completions have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stoppable._core.values import RUN_ID, Policy, Status, new_id
from stoppable.errors import RunNotFound
from stoppable.records import RunRecord
from stoppable.server.access import Principal, Scope, caller_of
from stoppable.server.backend import Host
from stoppable.server.responses import Problem, json_response
from stoppable.server.surfaces import openai_wire as wire
from stoppable.server.surfaces.ends import End
from stoppable.server.surfaces.inputs import arguments_of
from stoppable.server.surfaces.surface import POLICY, Surface, surface_route

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def openai_api(host: Host, *, policy: Policy = POLICY) -> APIRouter:
    """Return the routes of the OpenAI API for the agents of a server, for ``serve`` and ``create_app``.

    ``model`` names the agent. ``policy`` is that of the runs: by default a stop takes four seconds at most, because
    clients wait for it.
    """
    router = APIRouter(prefix="/v1", route_class=surface_route(wire.spell))
    _Routes(host, Surface(host, "openai", policy)).add_to(router)
    return router


class _Routes:
    def __init__(self, host: Host, surface: Surface) -> None:
        self._host, self._surface = host, surface

    def add_to(self, router: APIRouter) -> None:
        """Register the routes; the last one answers everything else in the format of the API."""
        routes: tuple[tuple[str, str, Callable[..., Any]], ...] = (
            ("GET", "/models", self.models),
            ("GET", "/models/{name:path}", self.model),
            ("POST", "/responses", self.create),
            ("GET", "/responses/{response_id}", self.retrieve),
            ("POST", "/responses/{response_id}/cancel", self.cancel),
            ("POST", "/chat/completions", self.chat),
        )
        for method, path, handler in routes:
            _add(router, [method], path, handler)
        _add(router, _METHODS, "/{path:path}", self.unknown)

    async def models(self, request: Request) -> Response:
        """List the agents."""
        caller_of(request, Scope.READ)
        return json_response({"object": "list", "data": [wire.model_object(name) for name in self._surface.agents]})

    async def model(self, request: Request, name: str) -> Response:
        """Show an agent."""
        caller_of(request, Scope.READ)
        self._surface.signature(name)  # or a 404
        return json_response(wire.model_object(name))

    async def create(self, request: Request) -> Response:
        """Start an agent; answer at once, at its end, or with its events."""
        caller = caller_of(request, Scope.START)
        body, _ = await wire.read_body(self._host, request, wire.ResponseBody)
        if body.conversation is not None and body.previous_response_id is not None:
            raise Problem(400, "invalid_value", "give a conversation or a previous_response_id, not both")
        messages = wire.messages_of(body.input, "input")
        labels = dict(body.metadata or {})
        previous = None
        if body.previous_response_id is not None:
            previous = await self._found(body.previous_response_id, caller, "previous_response_id")
            labels[wire.PREVIOUS] = wire.response_id(previous.id)
        if body.background:
            labels[wire.BACKGROUND] = "true"
        if body.stream:
            self._surface.check_room(caller)
        run_id = new_id()
        conversation = body.conversation_id or (run_id if previous is None else self._surface.conversation(previous))
        text = wire.text_of_user(messages, "input")
        record = await self._surface.begin(
            caller,
            body.model,
            arguments_of(self._surface.signature(body.model), text, messages, conversation),
            run_id=run_id,
            after=previous,
            conversation=conversation,
            labels=labels,
        )
        if body.stream:
            events = wire.ResponseEvents(record)
            return self._surface.stream(record, caller, events, stops=not body.background)
        if not body.background:
            record = await self._surface.wait(request, record, caller)
        return _response(record, await self._surface.end(record))

    async def retrieve(
        self,
        request: Request,
        response_id: str,
        stream: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query
        starting_after: Annotated[int, Query(ge=-1, le=2**53)] = -1,
    ) -> Response:
        """Return a response, or its events after a number; leaving that stream stops nothing."""
        caller = caller_of(request, Scope.READ)
        record = await self._found(response_id, caller)
        if stream:
            self._surface.check_room(caller)
            return self._surface.stream(record, caller, wire.ResponseEvents(record, starting_after), stops=False)
        return _response(record, await self._surface.end(record))

    async def cancel(self, request: Request, response_id: str) -> Response:
        """Stop a run and answer once it has ended; the same request again answers the same."""
        caller = caller_of(request, Scope.STOP)
        record = await self._found(response_id, caller)
        record = await self._surface.stop(request, record, caller, "cancelled")
        return _response(record, await self._surface.end(record))

    async def chat(self, request: Request) -> Response:
        """Start an agent and answer at its end, or with what it says."""
        caller = caller_of(request, Scope.START)
        body, sent = await wire.read_body(self._host, request, wire.ChatBody)
        signature = self._surface.signature(body.model)
        if signature.takes("messages"):
            arguments: Any = arguments_of(signature, "", sent["messages"], None)
        else:
            messages = wire.messages_of(body.messages, "messages")
            arguments = arguments_of(signature, wire.text_of_user(messages, "messages"), messages, None)
        if body.stream:
            self._surface.check_room(caller)
        record = await self._surface.begin(caller, body.model, arguments, labels=body.metadata)
        if body.stream:
            return self._surface.stream(record, caller, wire.ChatChunks(record), stops=True)
        record = await self._surface.wait(request, record, caller)
        return _completion(record, await self._surface.end(record))

    async def unknown(self, request: Request) -> Response:
        """Refuse what is not here."""
        message = f"unknown request: {request.method} {request.url.path[:200]}"
        raise Problem(404, "unknown_url", f"{message}; here are /models, /responses and /chat/completions")

    async def _found(self, response_id: str, caller: Principal, param: str = "response_id") -> RunRecord:
        run_id = response_id.removeprefix("resp_")
        try:
            if re.fullmatch(RUN_ID, run_id) is None:
                raise RunNotFound(run_id)
            return await self._surface.record(run_id, caller)
        except RunNotFound:
            message = f"no response with id {response_id[:150]!r}"
            raise Problem(404, "response_not_found", message, param=param) from None


def _add(router: APIRouter, methods: list[str], path: str, handler: Callable[..., Any]) -> None:
    # Not in the document of our own routes: the API has one.
    router.add_api_route(path, handler, methods=methods, response_class=Response, include_in_schema=False)


def _response(record: RunRecord, end: End | None) -> Response:
    return json_response(wire.response_object(record, end), headers={"Stoppable-Run-Id": record.id})


def _completion(record: RunRecord, end: End | None) -> Response:
    headers = {"Stoppable-Run-Id": record.id}
    if end is None or end.status is not Status.COMPLETED:  # without an end, nobody reads it any more
        error = {"message": "the client left"} if end is None else wire.error_of(end)
        status = 409 if end is None or end.status is Status.STOPPED else 500
        return json_response({"error": error}, status, {**headers, **wire.NO_RETRY})
    choice = {"message": {"role": "assistant", "content": end.text, "refusal": None}, "finish_reason": "stop"}
    return json_response(wire.completion_object(record, "chat.completion", choice), headers=headers)

"""The 0.1 dialect of A2A (``tasks/send``, ``tasks/sendSubscribe``), which the SDK does not speak.

It shares method names with 0.3 and spells answers differently; the id of a task tells which dialect it was made in.

The client makes the ids of tasks, and the SDK finds the tasks that are executed by their ids alone. So the SDK gets an
id that contains the owner, and cannot be one that it makes itself.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

from a2a.server.context import ServerCallContext
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from stoppable import InvalidArgument
from stoppable.adapters.a2a.handler import StoppableRequestHandler
from stoppable.adapters.a2a.task_states import SUBMITTED, TERMINAL, owner_of
from stoppable.adapters.a2a.wire import INTERNAL, PARAMS, plain, rpc_error

_logger = logging.getLogger("stoppable.adapters.a2a")

_INNER = "0.1:"  # then the owner and what the client calls the task
_STARTS = frozenset({"tasks/send", "tasks/sendSubscribe", "tasks/list"})  # 0.1 alone has them
_SHARED = frozenset({"tasks/get", "tasks/cancel", "tasks/resubscribe"})  # 0.3 has them too: the task decides
_CODES = {TaskNotFoundError: -32001, TaskNotCancelableError: -32002, UnsupportedOperationError: -32004}
_NO_METHOD = -32601
_ID_LENGTH = 1000

Endpoint = Callable[[Request], Awaitable[Response]]
Build = Callable[[Request], ServerCallContext]


class Legacy:
    """Answers requests in the 0.1 dialect, and passes all others to the SDK."""

    def __init__(self, handler: StoppableRequestHandler, rest: Endpoint, build: Build) -> None:
        self._handler, self._rest, self._build = handler, rest, build

    async def __call__(self, request: Request, content: Mapping[str, Any]) -> Response:
        """Answer a JSON-RPC request with a content that was parse_body already."""
        method, params, request_id = content.get("method"), content.get("params"), content.get("id")
        if not isinstance(method, str) or method not in _STARTS | _SHARED:
            return await self._other(request, method, request_id)
        params = dict(params) if isinstance(params, Mapping) else {}
        context = self._build(request)
        params["id"] = await self._inner_id(params.get("id"), context)
        if method in _SHARED and not await self._is_ours(params["id"], context):
            return await self._other(request, method, request_id)
        try:
            result = await self._answer(method, params, context)
        except Exception as error:
            return JSONResponse(plain({"jsonrpc": "2.0", "id": request_id, "error": _error(error, context)}))
        if isinstance(result, Response):
            return result
        return JSONResponse({"jsonrpc": "2.0", "id": plain(request_id), "result": result})

    async def _other(self, request: Request, method: Any, request_id: Any) -> Response:
        """Let the SDK answer a request in 1.0 or 0.3."""
        version = request.headers.get("a2a-version", "")
        if isinstance(method, str) and "/" in method and version.startswith("1."):  # the SDK calls it an internal error
            return rpc_error(request_id, _NO_METHOD, f"{method[:100]} is not a method of A2A {version[:20]}")
        return await self._rest(request)

    async def _answer(self, method: str, params: Mapping[str, Any], context: ServerCallContext) -> Any:
        handler = self._handler
        match method:
            case "tasks/send":
                return _task(await handler.on_message_send(await self._message(params, context), context))
            case "tasks/sendSubscribe":
                return await _stream(
                    handler.on_message_send_stream(await self._message(params, context), context), context
                )
            case "tasks/resubscribe":
                return await self._resubscribe(params["id"], context)
            case "tasks/get":
                return _task(await handler.on_get_task(GetTaskRequest(id=params["id"]), context))
            case "tasks/cancel":
                return _task(await handler.on_cancel_task(self._cancel(params), context))
            case _:
                page = await handler.on_list_tasks(ListTasksRequest(include_artifacts=True), context)
                return [_task(task) for task in page.tasks]

    async def _resubscribe(self, task_id: str, context: ServerCallContext) -> Response:
        task = await self._handler.on_get_task(GetTaskRequest(id=task_id), context)
        if task.status.state in TERMINAL:
            return await _stream(_only(task), context)
        return await _stream(self._handler.on_subscribe_to_task(SubscribeToTaskRequest(id=task_id), context), context)

    @staticmethod
    def _cancel(params: Mapping[str, Any]) -> CancelTaskRequest:
        request, metadata = CancelTaskRequest(id=params["id"]), params.get("metadata")
        if isinstance(metadata, Mapping) and metadata:
            request.metadata.update(dict(metadata))
        return request

    async def _inner_id(self, task_id: Any, context: ServerCallContext) -> Any:
        """Return what the SDK calls a task; one that the owner made in another protocol keeps its id."""
        if not isinstance(task_id, str) or not task_id or await self._handler.task_store.get(task_id, context):
            return task_id
        return _prefix(context) + task_id

    async def _is_ours(self, task_id: Any, context: ServerCallContext) -> bool:
        task = await self._handler.task_store.get(task_id, context) if isinstance(task_id, str) else None
        return task is not None and task_id.startswith(_INNER)

    async def _message(self, params: Mapping[str, Any], context: ServerCallContext) -> SendMessageRequest:
        """Return a message as the SDK has it; its task is stored first, because the SDK makes all ids itself."""
        task_id, session = params.get("id") or _prefix(context) + str(uuid.uuid4()), params.get("sessionId")
        if not isinstance(task_id, str) or len(_outer_id(task_id)) > _ID_LENGTH:
            raise InvalidParamsError(message=f"invalid task id: use a string of up to {_ID_LENGTH} characters")
        message = params.get("message")
        parts = message.get("parts") if isinstance(message, Mapping) else None
        if not isinstance(parts, list) or not parts:
            raise InvalidParamsError(message="a message needs parts")
        content = [_part_of(part) for part in parts]
        task = await self._handler.task_store.get(task_id, context)
        if task is None:
            context_id = session if isinstance(session, str) and session else str(uuid.uuid4())
            task = Task(id=task_id, context_id=context_id, status=TaskStatus(state=SUBMITTED))
            task.status.timestamp.GetCurrentTime()
            await self._handler.task_store.save(task, context)
        sent = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=content)
        sent.task_id, sent.context_id = task_id, task.context_id
        return SendMessageRequest(message=sent)


def _prefix(context: ServerCallContext) -> str:
    return f"{_INNER}{quote(owner_of(context) or '', safe='')}:"


def _outer_id(task_id: str) -> str:
    """Return what the client calls a task."""
    return task_id.split(":", 2)[2] if task_id.startswith(_INNER) else task_id


def _error(error: Exception, context: ServerCallContext) -> dict[str, Any]:
    if not isinstance(error, A2AError | InvalidArgument):
        _logger.error("a request in the 0.1 dialect failed", exc_info=error)
        return {"code": INTERNAL, "message": "internal error: see the log of the server"}
    is_wrong = isinstance(error, InvalidParamsError | InvalidArgument)
    code = PARAMS if is_wrong else _CODES.get(type(error), INTERNAL)
    return {"code": code, "message": str(error).replace(_prefix(context), "")}


def _part_of(part: Any) -> Part:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return Part(text=part["text"])
    if isinstance(part, Mapping) and "data" in part:
        try:
            return ParseDict({"data": part["data"]}, Part())
        except ParseError as error:
            raise InvalidParamsError(message=str(error)) from None
    raise InvalidParamsError(message="a part needs text or data")


# What goes out


async def _only(task: Task) -> AsyncGenerator[Any, None]:
    yield task


async def _stream(events: AsyncIterator[Any], context: ServerCallContext) -> Response:
    """Return a stream of events; an error before the first one becomes an ordinary response."""
    first = await anext(aiter(events), None)
    headers = {"cache-control": "no-store"}
    return StreamingResponse(_frames(first, events, context), media_type="text/event-stream", headers=headers)


async def _frames(first: Any, events: Any, context: ServerCallContext) -> AsyncIterator[str]:
    try:
        if first is not None:
            yield _frame(result=_event(first))
        async for event in events:
            yield _frame(result=_event(event))
    except Exception as error:
        yield _frame(error=_error(error, context))
    finally:
        await events.aclose()


def _frame(**content: Any) -> str:
    return f"data: {json.dumps({'jsonrpc': '2.0', **content})}\n\n"  # LF LF: clients split there


def _event(event: Any) -> dict[str, Any]:
    if isinstance(event, Message):
        return {"message": {"role": "agent", "parts": _parts(event.parts)}, "final": True, "type": "Message"}
    ids = {"taskId": _outer_id(event.id if isinstance(event, Task) else event.task_id), "contextId": event.context_id}
    if hasattr(event, "status"):
        final = event.status.state in TERMINAL
        return {**ids, "status": _status(event.status), "final": final, "type": "TaskStatusUpdateEvent"}
    more = {"append": event.append, "lastChunk": event.last_chunk}
    return {**ids, "artifact": _artifact(event.artifact), **more, "type": "TaskArtifactUpdateEvent"}


def _task(task: Any) -> dict[str, Any]:
    if isinstance(task, Message):
        return _event(task)
    return {
        "id": _outer_id(task.id),
        "contextId": task.context_id,
        "sessionId": task.context_id,
        "status": _status(task.status),
        "artifacts": [_artifact(artifact) for artifact in task.artifacts],
        "metadata": MessageToDict(task.metadata),
    }


def _status(status: TaskStatus) -> dict[str, Any]:
    fields = {
        "state": TaskState.Name(status.state).removeprefix("TASK_STATE_").lower(),
        "timestamp": status.timestamp.ToJsonString(),
    }
    if status.HasField("message"):
        fields["message"] = {"role": "agent", "parts": _parts(status.message.parts)}
    return fields


def _artifact(artifact: Any) -> dict[str, Any]:
    return {"artifactId": artifact.artifact_id, "name": artifact.name, "parts": _parts(artifact.parts)}


def _parts(parts: Any) -> list[dict[str, Any]]:
    return [
        {"type": "data", "data": MessageToDict(part.data)}
        if part.HasField("data")
        else {"type": "text", "text": part.text}
        for part in parts
    ]

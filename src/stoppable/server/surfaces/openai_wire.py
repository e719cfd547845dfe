"""The OpenAI API on the wire: what it is sent, and the objects, events and errors that it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.responses import Response

from stoppable._core.values import Status
from stoppable.records import RunRecord
from stoppable.server.backend import Host
from stoppable.server.responses import Problem, json_response, loads
from stoppable.server.schemas import check_depth
from stoppable.server.sse.feeds import message
from stoppable.server.surfaces.ends import End
from stoppable.server.surfaces.surface import Wording, data_line

# Requests

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
# As the API has it, but that a value is a label of the run, which is shorter.
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=256)]],
    Field(max_length=16),
]
_TEXTS = ("text", "input_text", "output_text")
_OWN = "openai."
PREVIOUS, BACKGROUND = f"{_OWN}previous_response_id", f"{_OWN}background"


class _Body(BaseModel):
    # What tells a model how to answer has no meaning for an agent, so it is ignored, as other servers do.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    model: Name
    stream: bool | None = None
    metadata: Metadata | None = None


class _Part(BaseModel):
    type: str
    text: str | None = None


class _Message(BaseModel):
    type: str | None = None
    role: str | None = None
    content: str | list[_Part] | None = None


class _ConversationId(BaseModel):
    id: Name


class ResponseBody(_Body):
    """The body of ``POST /responses``."""

    input: str | list[_Message]
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Name | _ConversationId | None = None

    @property
    def conversation_id(self) -> str | None:
        """The conversation that it names."""
        return self.conversation.id if isinstance(self.conversation, _ConversationId) else self.conversation


class ChatBody(_Body):
    """The body of ``POST /chat/completions``."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    n: Literal[1] | None = None


B = TypeVar("B", ResponseBody, ChatBody)


async def read_body(host: Host, request: Request, kind: type[B]) -> tuple[B, Any]:
    """Return the body of a request, checked, and as it was sent."""
    try:
        sent = check_depth(loads(await host.body(request)))
    except (ValueError, RecursionError) as error:
        raise Problem(400, "invalid_json", f"the body is not JSON that can be read: {error}"[:200]) from None
    try:
        body = kind.model_validate(sent)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        param = ".".join(str(part)[:60] for part in first["loc"])
        raise Problem(400, "invalid_value", f"{param or 'the body'}: {first['msg']}", param=param or None) from None
    if any(name.startswith(_OWN) for name in body.metadata or ()):
        raise Problem(
            400, "invalid_value", f"metadata: names that begin with {_OWN!r} are the server's own", param="metadata"
        )
    return body, sent


def messages_of(given: str | Sequence[_Message], param: str) -> list[dict[str, Any]]:
    """Return messages as chat completions have them, with text as their content."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages = []
    for number, one in enumerate(given):
        if one.type not in {None, "message"} or one.role is None:
            raise _unsupported(f"{param}.{number}", f"items of type {one.type!r}")
        content = one.content or ""
        if not isinstance(content, str):
            for part in content:
                if part.type not in _TEXTS:
                    raise _unsupported(f"{param}.{number}.content", f"parts of type {part.type!r}")
            content = "".join(part.text or "" for part in content)
        messages.append({"role": one.role, "content": content})
    return messages


def _unsupported(param: str, what: str) -> Problem:
    return Problem(400, "unsupported_value", f"{param}: {what:.80} are not supported: send text", param=param)


def text_of_user(messages: Sequence[Mapping[str, Any]], param: str) -> str:
    """Return the last text of the user."""
    for one in reversed(messages):
        if one["role"] == "user":
            return str(one["content"])
    raise Problem(400, "invalid_value", f"{param}: there is no message of the user", param=param)


# Errors

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_SERVER_ERROR = 500
# Their clients know neither: bad input is 400, and what may not be started 403.
_STATUSES = {422: 400, 423: 403}
NO_RETRY = {"x-should-retry": "false"}
"""For errors after a start: clients would repeat the request, and start the agent again."""


def spell(problem: Problem) -> Response:
    """Return an error as clients of the API read it."""
    status = _STATUSES.get(problem.status_code, problem.status_code)
    kind = "server_error" if status >= _SERVER_ERROR else _TYPES.get(status, "invalid_request_error")
    param, code = problem.more.get("param"), problem.code
    if code == "agent_not_found":
        param, code = "model", "model_not_found"
    error = {"message": problem.detail, "type": kind, "param": param, "code": code}
    return json_response({"error": error}, status, problem.headers)


def error_of(end: End) -> dict[str, Any]:
    """Return the error that tells clients of chat completions of a turn that was not completed."""
    return {"message": end.sentence, "type": "stoppable", "param": None, "code": end.status, "stoppable": end.facts}


# Objects

_STATES = {
    Status.PENDING: "queued",
    Status.RUNNING: "in_progress",
    Status.STOPPING: "in_progress",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.STOPPED: "cancelled",
    Status.LOST: "failed",  # cancelled would say that it has ended
}


def model_object(name: str) -> dict[str, Any]:
    """Return an agent as a model."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "stoppable"}


def response_id(run_id: str) -> str:
    """Return the id of the response that a run is."""
    return f"resp_{run_id}"


def response_object(record: RunRecord, end: End | None = None) -> dict[str, Any]:
    """Return a run as a response; without an end it is at work."""
    status = record.status if end is None else end.status
    is_failed = end is not None and status in {Status.FAILED, Status.LOST}
    labels = record.labels
    return {
        "id": response_id(record.id),
        "object": "response",
        "created_at": int(record.created_at),
        "completed_at": int(end.ended_at) if end and end.ended_at and status is Status.COMPLETED else None,
        "status": _STATES[status],
        "background": BACKGROUND in labels,
        "model": record.name,
        "previous_response_id": labels.get(PREVIOUS),
        "output": [message_item(record.id, end)] if end and end.text else [],
        "error": {"code": "server_error", "message": end.sentence} if end and is_failed else None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {name: value for name, value in labels.items() if not name.startswith(_OWN)},
        "parallel_tool_calls": False,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "stoppable": end.facts if end else None,
    }


def message_item(run_id: str, end: End | None = None) -> dict[str, Any]:
    """Return the one item of the output of a response."""
    status = "in_progress" if end is None else "completed" if end.status is Status.COMPLETED else "incomplete"
    content = [] if end is None else [text_part(end.text)]
    return {"id": f"msg_{run_id}", "type": "message", "role": "assistant", "status": status, "content": content}


def text_part(text: str) -> dict[str, Any]:
    """Return the one part of such an item."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def completion_object(record: RunRecord, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    """Return a chat completion, or a chunk of one."""
    return {
        "id": f"chatcmpl-{record.id}",
        "object": kind,
        "created": int(record.created_at),
        "model": record.name,
        "choices": [{"index": 0, "logprobs": None, **choice}],
    }


# Streams


class ResponseEvents(Wording):
    """The events of a response. The same log gives the same numbers, so a client resumes after one that it has."""

    def __init__(self, record: RunRecord, after: int = -1) -> None:
        self._record, self._after = record, after
        self._number = -1
        self._has_item = False
        self._place: dict[str, Any] = {"item_id": f"msg_{record.id}", "output_index": 0, "content_index": 0}

    def opening(self, record: RunRecord) -> bytes:
        """Return its creation."""
        response = {**response_object(record), "status": "in_progress"}
        return b"".join(self._event(f"response.{kind}", response=response) for kind in ("created", "in_progress"))

    def text(self, delta: str) -> bytes:
        """Return a delta, with the item that it belongs to before the first one."""
        return self._item() + self._event("response.output_text.delta", **self._place, delta=delta, logprobs=[])

    def _item(self) -> bytes:
        if self._has_item:
            return b""
        self._has_item = True
        item = message_item(self._record.id)
        added = self._event("response.output_item.added", output_index=0, item=item)
        return added + self._event("response.content_part.added", **self._place, part=text_part(""))

    def end(self, end: End) -> bytes:
        """Return the end of the item and of the response.

        The API has no event for a cancelled response: ``response.incomplete`` is the end that its clients know, and the
        status of the response in it is ``cancelled``.
        """
        chunks = []
        if end.text:
            item, part = message_item(self._record.id, end), text_part(end.text)
            chunks = [
                self._item(),
                self._event("response.output_text.done", **self._place, text=end.text, logprobs=[]),
                self._event("response.content_part.done", **self._place, part=part),
                self._event("response.output_item.done", output_index=0, item=item),
            ]
        response = response_object(self._record, end)
        kind = response["status"] if response["status"] in {"completed", "failed"} else "incomplete"
        return b"".join([*chunks, self._event(f"response.{kind}", response=response)])

    def broken(self, name: str, message: str) -> bytes:
        """Return an error; a response in the background may be resumed."""
        return self._event("error", code=name, message=message, param=None)

    def _event(self, kind: str, **data: Any) -> bytes:
        self._number += 1
        if self._number <= self._after:
            return b""
        return message(kind, {"type": kind, "sequence_number": self._number, **data})


class ChatChunks(Wording):
    """The chunks of a chat completion."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record

    def opening(self, record: RunRecord) -> bytes:  # noqa: ARG002 - it has it
        """Return the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, delta: str) -> bytes:
        """Return a piece of the answer."""
        return self._chunk({"content": delta})

    def end(self, end: End) -> bytes:
        """Return the end; no ``finish_reason`` means a stop, so clients get an error, which they raise."""
        if end.status is not Status.COMPLETED:
            return data_line({"error": error_of(end)})
        return self._chunk({}, "stop") + b"data: [DONE]\n\n"

    def broken(self, name: str, message: str) -> bytes:
        """Return an error."""
        return data_line({"error": {"message": message, "type": "server_error", "param": None, "code": name}})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return data_line(
            completion_object(self._record, "chat.completion.chunk", {"delta": delta, "finish_reason": finish})
        )

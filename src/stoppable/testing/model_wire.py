"""The wire format of chat completions: HTTP/1.1 requests in, answers and server-sent events out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from stoppable.testing.model_script import Reply

_ID = "chatcmpl-scripted"
_END_OF_HEADERS = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it came in; ``connection`` says over which connection of the server."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes
    connection: int

    @property
    def body(self) -> dict[str, Any]:
        """The JSON that was sent."""
        parsed: dict[str, Any] = json.loads(self.content)
        return parsed

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation so far, as the model sees it."""
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def is_streamed(self) -> bool:
        """Whether the client asks for a stream."""
        return bool(self.body.get("stream"))


def parse(buffer: bytearray, connection: int) -> Request | None:
    """Take one request from the received bytes; None if it is incomplete."""
    end = buffer.find(_END_OF_HEADERS)
    if end < 0:
        return None
    start, *lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    method, path, _ = start.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    begin = end + len(_END_OF_HEADERS)
    length = int(headers.get("content-length", "0"))
    if len(buffer) < begin + length:
        return None
    content = bytes(buffer[begin : begin + length])
    del buffer[: begin + length]
    return Request(method=method, path=path, headers=headers, content=content, connection=connection)


def answer(status: int, body: object, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a whole answer."""
    content = json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
    return _head(status, fields) + content


def error(status: int, message: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return an error response, as providers send it."""
    return answer(status, {"error": {"message": message, "type": "scripted", "param": None, "code": None}}, headers)


def models() -> bytes:
    """Return the list of the one model there is."""
    model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "stoppable"}
    return answer(HTTPStatus.OK, {"object": "list", "data": [model]})


def completion(request: Request, reply: Reply) -> bytes:
    """Return a whole reply at once."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.tokens) or None}
    if reply.tool_calls:
        message["tool_calls"] = _tool_calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply), "logprobs": None}
    return answer(HTTPStatus.OK, _envelope(request, "chat.completion") | {"choices": [choice], "usage": _usage(reply)})


def stream_head(request: Request) -> bytes:
    """Return the beginning of a reply that is sent in pieces."""
    fields = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
    return _head(HTTPStatus.OK, fields) + _event(_chunk(request, {"role": "assistant", "content": ""}))


def stream_token(request: Request, token: str) -> bytes:
    """Return one token."""
    return _event(_chunk(request, {"content": token}))


def stream_tail(request: Request, reply: Reply) -> bytes:
    """Return the rest of a reply after its last token: the tool calls, the reason, the usage if it was asked for."""
    return b"".join(_tail(request, reply)) + b"0\r\n\r\n"


def _tail(request: Request, reply: Reply) -> Iterator[bytes]:
    for index, call in enumerate(_tool_calls(reply)):
        yield _event(_chunk(request, {"tool_calls": [{"index": index, **call}]}))
    yield _event(_chunk(request, {}, _finish_reason(reply)))
    if (request.body.get("stream_options") or {}).get("include_usage"):
        yield _event(_envelope(request, "chat.completion.chunk") | {"choices": [], "usage": _usage(reply)})
    yield _event("[DONE]")


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + _END_OF_HEADERS


def _event(data: object) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    content = f"data: {text}\n\n".encode()
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def _chunk(request: Request, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
    return _envelope(request, "chat.completion.chunk") | {"choices": [choice]}


def _envelope(request: Request, kind: str) -> dict[str, Any]:
    return {"id": _ID, "object": kind, "created": 0, "model": request.body.get("model", "scripted")}


def _tool_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.tool_calls
    ]


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.tool_calls else "stop"


def _usage(reply: Reply) -> dict[str, int]:
    count = len(reply.tokens)
    return {"prompt_tokens": 0, "completion_tokens": count, "total_tokens": count}

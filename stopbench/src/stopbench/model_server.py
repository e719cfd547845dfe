"""A scripted model behind the OpenAI API, on a real socket: it counts its tokens, and refuses what providers refuse.

It produces a token every 0.05 s and stops when the client closes the connection, as providers do.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from stopbench.scenarios import ANSWER, NEXT, Scenario

TOKEN_SECONDS = 0.05
_THINKING, _LONG, _STREAMED = 4, 20, 100
"""Tokens of a usual answer, of the model call that is stopped and of the stream that is stopped."""
HELPER = "helper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model says: words, and then calls of tools, by name and arguments."""

    words: tuple[str, ...]
    calls: tuple[tuple[str, str], ...] = ()
    is_last: bool = False
    """Whether the turn ends with it."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One request, and what became of it."""

    at: float
    messages: list[dict[str, Any]]
    tokens: list[float] = field(default_factory=list)
    """When each was produced."""
    ending: str = ""
    """"sent", "closed" by the client, "refused"; empty while it is answered."""


def words(count: int) -> tuple[str, ...]:
    """Return tokens that can be told apart."""
    return tuple(f"word{number} " for number in range(1, count + 1))


def last(text: str, final_tool: str | None) -> Reply:
    """Return an answer with which a turn ends; in some frameworks that is the call of a tool."""
    if final_tool is None:
        return Reply(words=(text,), is_last=True)
    return Reply(words=("I answer. ",), calls=((final_tool, json.dumps({"answer": text})),), is_last=True)


def script(scenario: Scenario, sub_agent: str | None, final_tool: str | None) -> Iterator[Reply]:
    """Yield what the model says from one request to the next; `sub_agent` is the argument of the tool `helper`."""
    if scenario.moment == "answer":
        yield last(ANSWER, final_tool)
        return
    if scenario.delegates and sub_agent is not None:
        yield Reply(words=("I delegate. ",), calls=((HELPER, json.dumps({sub_agent: "Book a trip."})),))
    calls = tuple((tool, "{}") for tool in scenario.tools)
    if scenario.is_streamed:
        yield Reply(words=words(_STREAMED), is_last=final_tool is None)
        return
    if scenario.moment == "token":
        yield Reply(words=words(_LONG), calls=calls)
    while True:
        yield Reply(words=words(_THINKING), calls=calls)


def refusal(messages: list[dict[str, Any]]) -> str | None:
    """Return why a strict provider refuses a conversation: each call needs a result before anything else is said."""
    unanswered: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in unanswered:
                return f"the result {message.get('tool_call_id')!r} belongs to no call"
            unanswered.discard(message["tool_call_id"])
        elif unanswered:
            return f"the call {min(unanswered)!r} has no result"
        unanswered |= {call["id"] for call in message.get("tool_calls") or ()}
    return f"the call {min(unanswered)!r} has no result" if unanswered else None


def text_of(message: dict[str, Any]) -> str:
    """Return what a message says, also if it is in parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""


def is_next_turn(messages: list[dict[str, Any]]) -> bool:
    """Return whether the user has written again."""
    return any(message["role"] == "user" and NEXT in text_of(message) for message in messages)


class ModelServer:
    """The server, on a thread for each connection; a context manager."""

    def __init__(self, scenario: Scenario, sub_agent: str | None = "task", final_tool: str | None = None) -> None:
        self._script = script(scenario, sub_agent, final_tool)
        self._final_tool = final_tool
        self._lock = threading.Lock()
        self._calls = 0
        self.requests: list[Request] = []
        self.answered: float | None = None
        """When the last answer of the script was sent in full."""
        model = self

        class Handler(_Handler):
            server_model = model

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def tokens(self) -> list[float]:
        """Return when each token was produced."""
        return [at for request in list(self.requests) for at in list(request.tokens)]

    def begin(self, messages: list[dict[str, Any]]) -> tuple[Request, Reply | None]:
        """Note a request, and return what the model says to it; None if it is refused."""
        with self._lock:
            request = Request(at=time.monotonic(), messages=messages)
            self.requests.append(request)
            if refusal(messages) is not None:
                request.ending = "refused"
                return request, None
            if is_next_turn(messages):
                return request, last("Fine.", self._final_tool)
            return request, next(self._script, None) or last(ANSWER, self._final_tool)

    def call_id(self) -> str:
        """Return a new id for the call of a tool."""
        with self._lock:
            self._calls += 1
            return f"call-{self._calls}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # else a client has left, which is what is tested here


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_model: ModelServer
    connection: socket.socket

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        if len(text) < int(self.headers["Content-Length"]):
            self.close_connection = True  # its client has left
            return None
        body = json.loads(text)
        if not self.path.endswith("/chat/completions"):
            return self._send(404, {"error": {"message": f"{self.path} is not served", "type": "not_found"}})
        request, reply = self.server_model.begin(body["messages"])
        if reply is None:
            message = f"invalid messages: {refusal(body['messages'])}"
            return self._send(400, {"error": {"message": message, "type": "invalid_request_error"}})
        calls = [_call(self.server_model.call_id(), *call) for call in reply.calls]
        send = self._stream if body.get("stream") else self._answer
        is_sent = send(request, reply, calls)
        request.ending = "sent" if is_sent else "closed"
        if is_sent and reply.is_last and not is_next_turn(request.messages):
            self.server_model.answered = time.monotonic()
        if not is_sent:
            self.close_connection = True
        return None

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": []})

    def _answer(self, request: Request, reply: Reply, calls: list[dict[str, Any]]) -> bool:
        for _ in reply.words:
            if not self._produce(request):
                return False
        message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.words)}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        return self._send(200, _completion("chat.completion", [choice], usage=True))

    def _stream(self, request: Request, reply: Reply, calls: list[dict[str, Any]]) -> bool:
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._chunk({"role": "assistant", "content": ""})
            for word in reply.words:
                if not self._produce(request):
                    return False
                self._chunk({"content": word})
            for index, call in enumerate(calls):
                self._chunk({"tool_calls": [{"index": index, **call}]})
            self._chunk({}, finish="tool_calls" if calls else "stop")
            self._write(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        except OSError:
            return False
        return True

    def _produce(self, request: Request) -> bool:
        """Produce the next token; return False if the client has closed the connection.

        Its time is when it was due, not when this thread came to write it down: nobody is accused of a busy machine.
        """
        due = time.monotonic() + TOKEN_SECONDS
        readable, _, _ = select.select([self.connection], [], [], TOKEN_SECONDS)
        if readable:
            try:
                if not self.connection.recv(1, socket.MSG_PEEK):
                    return False
            except OSError:
                return False
        request.tokens.append(due)
        return True

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self._write(b"data: " + json.dumps(_completion("chat.completion.chunk", [choice])).encode() + b"\n\n")

    def _write(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send(self, status: int, value: dict[str, Any]) -> bool:
        data = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:
            return False
        return True


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _completion(kind: str, choices: list[dict[str, Any]], *, usage: bool = False) -> dict[str, Any]:
    value: dict[str, Any] = {"id": "answer", "object": kind, "created": 0, "model": "gpt-5-mini", "choices": choices}
    if usage:
        value["usage"] = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    return value

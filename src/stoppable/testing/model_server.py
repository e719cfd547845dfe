"""A scripted model on loopback, to see what a stop does to real clients: the script, the wire format, the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
import threading
import weakref
from asyncio import AbstractEventLoop, Event, Task, Transport
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

from stoppable.testing import messages_api, responses_api

__all__ = [
    "Ending",
    "Failure",
    "ModelConnection",
    "ModelRequest",
    "ModelServer",
    "Pause",
    "Reply",
    "Stuck",
    "ToolCall",
    "Turn",
]


class Pause:
    """Holds back the tokens of replies until the test releases them, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._permits = 0
        self._is_over = False
        self._waiting: dict[Event, AbstractEventLoop] = {}

    def release(self, tokens: int = 1) -> None:
        """Release a number of tokens."""
        with self._lock:
            self._permits += tokens
        self._wake()

    def end(self) -> None:
        """Release all tokens, now and later."""
        with self._lock:
            self._is_over = True
        self._wake()

    async def wait(self) -> None:
        """Wait for a token to be released, or for the end of the server."""
        wakeup = Event()
        with self._lock:
            self._waiting[wakeup] = asyncio.get_running_loop()
        try:
            while not self._take():
                await wakeup.wait()
                wakeup.clear()
        finally:
            with self._lock:
                del self._waiting[wakeup]

    def _take(self) -> bool:
        with self._lock:
            if self._permits and not self._is_over:
                self._permits -= 1
                return True
            return self._is_over

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting.items())
        for wakeup, loop in waiting:
            loop.call_soon_threadsafe(wakeup.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool that the model asks for; the arguments are JSON."""

    name: str
    arguments: str = "{}"
    id: str = "call"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a text, which is sent word by word, or its tokens; then the tool calls.

    Tokens are sent at once, at ``rate`` per second, or when ``pause`` releases them. The answer begins after ``delay``
    seconds. After ``drop_after`` tokens the connection is reset, which may overtake them.
    """

    text: str | Sequence[str] = ""
    tool_calls: Sequence[ToolCall] = ()
    rate: float | None = None
    pause: Pause | None = None
    delay: float = 0.0
    drop_after: int | None = None

    @property
    def tokens(self) -> list[str]:
        """The text word by word, each with the white space before it, or the tokens as given."""
        return re.findall(r"\s*\S+|\s+", self.text) if isinstance(self.text, str) else list(self.text)

    async def pace(self) -> None:
        """Wait until the next token may go."""
        if self.rate is not None:
            await asyncio.sleep(1 / self.rate)
        if self.pause is not None:
            await self.pause.wait()


@dataclass(frozen=True, slots=True)
class Stuck:
    """The model server never answers."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error response of the model server."""

    status: int = 500
    message: str = "the server had an error"
    headers: Mapping[str, str] = field(default_factory=dict)


Turn: TypeAlias = Reply | Stuck | Failure


_ID = "chatcmpl-scripted"
_RESPONSES = "/v1/responses"
_MESSAGES = "/v1/messages"
_END_OF_HEADERS = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
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
        """The conversation so far, as the model sees it, in the form of chat completions."""
        if self.is_of_responses:
            return responses_api.messages_of(self.body)
        if self.is_of_messages:
            return messages_api.messages_of(self.body)
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def is_of_responses(self) -> bool:
        """Whether it is one of the Responses API, not of chat completions."""
        return self.path == _RESPONSES

    @property
    def is_of_messages(self) -> bool:
        """Whether it is one of the Messages API of Anthropic; its clients add a query to the path."""
        return self.path.partition("?")[0] == _MESSAGES

    @property
    def is_streamed(self) -> bool:
        """Whether the client asks for a stream."""
        return bool(self.body.get("stream"))


def parse_request(buffer: bytearray, connection: int) -> ModelRequest | None:
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
    return ModelRequest(method=method, path=path, headers=headers, content=content, connection=connection)


def _json_response(status: int, body: object, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a response with a JSON body."""
    content = json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
    return _head(status, fields) + content


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return an error response, as providers send it."""
    return _json_response(
        status, {"error": {"message": message, "type": "scripted", "param": None, "code": None}}, headers
    )


def models_response() -> bytes:
    """Return the list of the one model there is."""
    model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "stoppable"}
    return _json_response(HTTPStatus.OK, {"object": "list", "data": [model]})


def completion_response(request: ModelRequest, reply: Reply) -> bytes:
    """Return a whole reply at once."""
    if request.is_of_responses:
        return _json_response(HTTPStatus.OK, responses_api.response(request.body, reply))
    if request.is_of_messages:
        return _json_response(HTTPStatus.OK, messages_api.response(request.body, reply))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.tokens) or None}
    if reply.tool_calls:
        message["tool_calls"] = _tool_calls(reply)
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply), "logprobs": None}
    return _json_response(
        HTTPStatus.OK, _envelope(request, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}
    )


def stream_head(request: ModelRequest, reply: Reply) -> bytes:
    """Return the beginning of a reply that is sent in pieces."""
    fields = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
    if request.is_of_responses:
        return _head(HTTPStatus.OK, fields) + b"".join(map(_event, responses_api.head(request.body)))
    if request.is_of_messages:
        return _head(HTTPStatus.OK, fields) + b"".join(map(_named_event, messages_api.head(request.body, reply)))
    return _head(HTTPStatus.OK, fields) + _event(_chunk(request, {"role": "assistant", "content": ""}))


def stream_token(request: ModelRequest, token: str) -> bytes:
    """Return a token as an event of the stream."""
    if request.is_of_messages:
        return _named_event(messages_api.token(token))
    return _event(responses_api.token(token) if request.is_of_responses else _chunk(request, {"content": token}))


def stream_tail(request: ModelRequest, reply: Reply) -> bytes:
    """Return the rest of a reply after its last token: the tool calls, the reason, the usage if it was asked for."""
    return b"".join(_tail(request, reply)) + b"0\r\n\r\n"


def _tail(request: ModelRequest, reply: Reply) -> Iterator[bytes]:
    if request.is_of_responses:
        yield from map(_event, responses_api.tail(request.body, reply))
        return
    if request.is_of_messages:
        yield from map(_named_event, messages_api.tail(reply))
        return
    for index, call in enumerate(_tool_calls(reply)):
        yield _event(_chunk(request, {"tool_calls": [{"index": index, **call}]}))
    yield _event(_chunk(request, {}, _finish_reason(reply)))
    if (request.body.get("stream_options") or {}).get("include_usage"):
        yield _event(_envelope(request, "chat.completion.chunk") | {"choices": [], "usage": _usage(reply)})
    yield _event("[DONE]")


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + _END_OF_HEADERS


def _named_event(data: Mapping[str, Any]) -> bytes:
    return _event(data, name=data["type"])


def _event(data: object, *, name: str | None = None) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    head = "" if name is None else f"event: {name}\n"
    content = f"{head}data: {text}\n\n".encode()
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def _chunk(request: ModelRequest, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
    return _envelope(request, "chat.completion.chunk") | {"choices": [choice]}


def _envelope(request: ModelRequest, kind: str) -> dict[str, Any]:
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


_DEADLINE = 30.0  # a wait ends at once, unless the test fails
_OK = Reply("ok")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Ending(StrEnum):
    """How a connection was closed."""

    AFTER_ANSWER = "after_answer"  # by the client, with nothing outstanding
    MID_ANSWER = "mid_answer"  # by the client, in order, before the answer was complete
    RESET = "reset"  # by the client, with tokens it had not read
    SERVER = "server"


class ModelConnection:
    """What the server saw of one connection."""

    __slots__ = ("answers", "ending", "number", "requests")

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.requests: int = 0
        self.answers: int = 0
        self.ending: Ending | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.number}: {self.answers} of {self.requests} answered, {self.ending or 'open'}>"


class Record:
    """Requests, connections and tokens, written by the server's thread and read by any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: list[ModelRequest] = []
        self._connections: list[ModelConnection] = []
        self._tokens = 0
        self._tokens_at_stop: int | None = None

    @property
    def requests(self) -> list[ModelRequest]:
        """All requests, in the order of their arrival."""
        return list(self._requests)

    @property
    def connections(self) -> list[ModelConnection]:
        """All connections, closed ones included, in the order in which they were made."""
        return list(self._connections)

    @property
    def tokens_sent(self) -> int:
        """The tokens sent so far, to all clients together."""
        return self._tokens

    def mark_stop(self) -> None:
        """Count from here what is sent after a stop."""
        self._tokens_at_stop = self._tokens

    @property
    def tokens_after_stop(self) -> int:
        """The tokens sent since ``mark_stop()``."""
        assert self._tokens_at_stop is not None, "call mark_stop() first"
        return self._tokens - self._tokens_at_stop

    def wait_for_request(self, count: int = 1, within: float = _DEADLINE) -> ModelRequest:
        """Block until so many requests have come, and return the last of them."""
        self._wait(lambda: len(self._requests) >= count, f"{count} requests", within)
        return self._requests[count - 1]

    def wait_for_tokens(self, count: int, within: float = _DEADLINE) -> None:
        """Block until so many tokens were sent."""
        self._wait(lambda: self._tokens >= count, f"{count} tokens", within)

    def wait_for_closed(self, count: int = 1, within: float = _DEADLINE) -> list[Ending]:
        """Block until so many connections were closed, and say how."""
        self._wait(lambda: len(self._endings()) >= count, f"{count} closed connections", within)
        return self._endings()

    async def wait_for_request_async(self, count: int = 1, within: float = _DEADLINE) -> ModelRequest:
        """Wait in a task until so many requests have come, and return the last of them."""
        await self._wait_async(lambda: len(self._requests) >= count, f"{count} requests", within)
        return self._requests[count - 1]

    async def wait_for_tokens_async(self, count: int, within: float = _DEADLINE) -> None:
        """Wait in a task until so many tokens were sent."""
        await self._wait_async(lambda: self._tokens >= count, f"{count} tokens", within)

    async def wait_for_closed_async(self, count: int = 1, within: float = _DEADLINE) -> list[Ending]:
        """Wait in a task until so many connections were closed, and say how."""
        await self._wait_async(lambda: len(self._endings()) >= count, f"{count} closed connections", within)
        return self._endings()

    def _endings(self) -> list[Ending]:
        return [connection.ending for connection in self._connections if connection.ending is not None]

    def _wait(self, condition: Callable[[], bool], what: str, within: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, within):
                raise TimeoutError(self._missing(what, within))

    async def _wait_async(self, condition: Callable[[], bool], what: str, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                while not condition():  # noqa: ASYNC110 - it happens on another thread
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise TimeoutError(self._missing(what, within)) from None

    def _missing(self, what: str, within: float) -> str:
        counts = f"{len(self._requests)} requests, {self._tokens} tokens, {self._connections}"
        return f"no {what} within {within} seconds; there were {counts}"

    # Called by its connections

    def note_connection(self) -> ModelConnection:
        """Add a connection to the record, and return it."""
        with self._changed:
            connection = ModelConnection(len(self._connections))
            self._connections.append(connection)
            self._changed.notify_all()
        return connection

    def note_request(self, connection: ModelConnection, request: ModelRequest) -> None:
        """Add a request to the record, and wake those who wait for it."""
        with self._changed:
            connection.requests += 1
            self._requests.append(request)
            self._changed.notify_all()

    def note_tokens(self, tokens: int) -> None:
        """Note tokens that go out."""
        with self._changed:
            self._tokens += tokens
            self._changed.notify_all()

    def note_answer(self, connection: ModelConnection) -> None:
        """Note that an answer is complete."""
        with self._changed:
            connection.answers += 1
            self._changed.notify_all()

    def note_close(self, connection: ModelConnection, ending: Ending) -> None:
        """Note how a connection was closed; the first report counts."""
        with self._changed:
            connection.ending = connection.ending or ending
            self._changed.notify_all()


class Talk(asyncio.Protocol):
    """One connection, on the server's loop."""

    def __init__(self, record: Record, next_turn: Callable[[], Turn], loop: AbstractEventLoop) -> None:
        self._record = record
        self._next_turn = next_turn
        self._loop = loop
        self._buffer = bytearray()
        self._answering: Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the connection to the record."""
        self._transport = cast("Transport", transport)
        self._connection = self._record.note_connection()

    def data_received(self, data: bytes) -> None:
        """Answer the next request once it is complete."""
        self._buffer += data
        self._serve_next()

    def eof_received(self) -> None:
        """Note that the client has closed it, in order."""
        self._end(Ending.MID_ANSWER if self._answering else Ending.AFTER_ANSWER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that it is gone."""
        self._end(Ending.SERVER if exc is None else Ending.RESET)

    def hang_up(self) -> None:
        """Close it from this side."""
        self._end(Ending.SERVER)
        self._transport.close()

    def _end(self, ending: Ending) -> None:
        self._record.note_close(self._connection, ending)
        if self._answering is not None:
            self._answering.cancel()

    def _serve_next(self) -> None:
        if self._answering is None:
            request = parse_request(self._buffer, self._connection.number)
            if request is not None:
                self._record.note_request(self._connection, request)
                self._answering = self._loop.create_task(self._serve(request))

    async def _serve(self, request: ModelRequest) -> None:
        try:
            await self._answer(request)
        finally:
            self._answering = None
        self._serve_next()

    def _finish(self, data: bytes) -> None:
        # Noted first: a test may check it as soon as the client has the whole answer.
        self._record.note_answer(self._connection)
        self._transport.write(data)

    async def _answer(self, request: ModelRequest) -> None:
        match request.method, request.path.partition("?")[0]:
            case "GET", "/v1/models":
                self._finish(models_response())
            case "POST", "/v1/chat/completions" | "/v1/responses" | "/v1/messages":
                await self._complete(request)
            case _:
                self._finish(error_response(HTTPStatus.NOT_FOUND, f"no {request.method} {request.path} here"))

    async def _complete(self, request: ModelRequest) -> None:
        try:
            is_streamed, _ = request.is_streamed, request.messages
        except (json.JSONDecodeError, AttributeError, LookupError):
            self._finish(error_response(HTTPStatus.BAD_REQUEST, "this is no chat completion"))
            return
        match self._next_turn():
            case Stuck():
                await self._loop.create_future()
            case Failure() as failure:
                self._finish(error_response(failure.status, failure.message, failure.headers))
            case Reply() as reply:
                await asyncio.sleep(reply.delay)
                await (self._stream(request, reply) if is_streamed else self._reply(request, reply))

    async def _reply(self, request: ModelRequest, reply: Reply) -> None:
        for sent, _ in enumerate(reply.tokens):
            await reply.pace()
            if reply.drop_after == sent:
                return await self._drop()
        self._record.note_tokens(len(reply.tokens))
        self._finish(completion_response(request, reply))
        return None

    async def _stream(self, request: ModelRequest, reply: Reply) -> None:
        self._transport.write(stream_head(request, reply))
        for sent, token in enumerate(reply.tokens):
            await reply.pace()
            if reply.drop_after == sent:
                return await self._drop()
            self._record.note_tokens(1)
            self._transport.write(stream_token(request, token))
        self._finish(stream_tail(request, reply))
        return None

    async def _drop(self) -> None:
        """Reset the connection, as a proxy does that gives up."""
        with contextlib.suppress(OSError):
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._end(Ending.SERVER)
        self._transport.abort()
        await self._loop.create_future()  # it was cancelled just now


class ModelServer(Record):
    """A scripted model server that speaks chat completions, the Responses API and Anthropic's Messages API.

    It records what its clients do. Each request gets the next reply of the script; after the last one, ``default``.
    Tokens are counted as they are sent, so that a test can tell how many came after a stop.
    """

    def __init__(self, *script: Turn, default: Turn = _OK) -> None:
        super().__init__()
        self._script = deque(script)
        self._default = default
        self._talks: weakref.WeakSet[Talk] = weakref.WeakSet()

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._loop = asyncio.new_event_loop()
        self._closing = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name="model-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._closing.set_result, None)
        self._thread.join(_DEADLINE)
        assert not self._thread.is_alive(), "the model server did not end"

    @property
    def url(self) -> str:
        """The base URL to give to a client."""
        host, port = self._listener.getsockname()
        return f"http://{host}:{port}/v1"

    def script(self, *turns: Turn) -> None:
        """Append replies to the script, which later requests get."""
        self._script.extend(turns)

    def _next_turn(self) -> Turn:
        return self._script.popleft() if self._script else self._default

    def _work(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(lambda: self._greet(self._loop), sock=self._listener)
        await self._closing  # it may be over before it has begun
        server.close()
        await self._hang_up()

    def _greet(self, loop: AbstractEventLoop) -> Talk:
        talk = Talk(self, self._next_turn, loop)
        self._talks.add(talk)
        return talk

    async def _hang_up(self) -> None:
        await asyncio.sleep(0)  # a connection that was just accepted is made in the next turn of the loop
        for talk in list(self._talks):
            talk.hang_up()
        answering = asyncio.all_tasks() - {asyncio.current_task()}
        if answering:
            await asyncio.wait(answering, timeout=_DEADLINE)
        await asyncio.sleep(0)  # and closed in the next

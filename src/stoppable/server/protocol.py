"""HTTP connections that cannot be used to fill our memory or to wait for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stoppable.server.connections import Connections
from stoppable.server.limits import ServerLimits
from stoppable.server.problems import Problem
from stoppable.server.sse.connection import StreamConnection, offered

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_REFUSAL = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
_TOO_LARGE = b'{"error":{"code":"head_too_large","message":"the headers are too large"}}'
_TOO_SLOW = b'{"error":{"code":"too_slow","message":"the request did not arrive in time"}}'
_NO_HTTP = b'{"error":{"code":"bad_request","message":"this is not an HTTP request"}}'
_BODY = frozenset({b"content-length", b"transfer-encoding"})
_MARGIN = 1.0  # whoever reads a body has given up before, and says so
_FOR_STOPS = 256  # connections beyond the limit that only a stop may use


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a bound on the size of a request's head and on the time a client lets us wait.

    The parser itself has neither: it would collect one header line until the memory is full, and one more byte behind
    a response would keep the connection for ever.
    """

    __slots__ = ("_address", "_head_bytes", "_is_in_head", "_is_in_request", "_timer")  # in its dict they would double

    limits: ClassVar[ServerLimits]
    waiting: ClassVar[Connections]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._is_in_request = False
        self._head_bytes: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, in place of somebody who has waited longer if the server is full."""
        there = len(self.connections)
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if not self.waiting.make_room(there) and there >= self.waiting.most + _FOR_STOPS:
            transport.abort()
            return
        self._wait(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._wait_no_longer()
        if self.scope is not None:
            self.scope.pop("extensions", None)  # it leads back here, and would keep both
        super().connection_lost(exc)

    def cut(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)  # whoever comes in its place is not one too many until the loop has told us
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Count what is not yet a whole head; not what it began in, most of which may be requests before it."""
        super().data_received(data)
        if self._head_bytes is None:
            self._head_bytes = 0
        elif self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > 2 * self.limits.head_bytes:
                self._refuse(b"431 Request Header Fields Too Large", _TOO_LARGE)

    def on_message_begin(self) -> None:
        """Wait for a head."""
        super().on_message_begin()
        self.scope["extensions"] = offered(self._hand_over)
        self._is_in_head = self._is_in_request = True
        self._head_bytes = None
        self._wait(self.limits.head_seconds)

    def on_headers_complete(self) -> None:
        """Wait for a body, if there will be one."""
        self._is_in_head = False
        if any(name in _BODY for name, _ in self.headers):
            self._wait(self.limits.body_seconds + _MARGIN)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait no longer; if it was answered before, for the next request."""
        self._is_in_request = False
        self._wait_no_longer()
        super().on_message_complete()
        if self.cycle.response_complete:
            self._wait(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """Wait for the next request, or still for the rest of this one."""
        super().on_response_complete()
        if not self._is_in_request and not self.pipeline and not self.transport.is_closing():
            self._wait(self.timeout_keep_alive)

    def pause_writing(self) -> None:
        """Count it among those that owe us something: it does not read."""
        super().pause_writing()
        self.waiting.owes(self, self._address)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if self._timer is None:
            self.waiting.paid(self)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's name
        """Refuse what is no request."""
        self._refuse(b"400 Bad Request", _NO_HTTP)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if len(self.connections) > self.waiting.most and not _is_stop(cycle.scope):
            app = _too_many
        super()._start_asgi_task(cycle, app)

    def _hand_over(self, stream: StreamConnection) -> bool:
        if self.pipeline:  # another request came behind this one, and is what ``connection_lost`` would end
            return False
        if not self.cycle.response_started:  # a middleware keeps the head back
            return False
        if self.flow.write_paused:  # who takes over would not be told
            return False
        transport, connections = self.transport, self.connections
        self.connection_lost(ConnectionAbortedError("it is a stream now"))  # as it is for this protocol
        stream.take_over(transport, connections)
        return True

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._too_slow)
        self.waiting.owes(self, self._address)

    def _wait_no_longer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.waiting.paid(self)

    def _too_slow(self) -> None:
        if self.flow.read_paused:  # it is we who keep it waiting
            self._wait(self.limits.body_seconds)
            return
        self._timer = None
        if self._is_in_request or self.cycle is None:
            self._refuse(b"408 Request Timeout", _TOO_SLOW)
        else:
            self.transport.close()  # it was idle

    def _refuse(self, status: bytes, body: bytes) -> None:
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:  # otherwise it would end up in a response
                self.transport.write(_REFUSAL % (status, len(body), body))
            self.transport.close()


def _is_stop(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] == "POST" and path.endswith(("/stop", "/stops"))


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    message = "the server has all the connections that it may have: try again; stops are still taken"
    problem = Problem(503, "too_many_connections", message, {"Retry-After": "1", "Connection": "close"})
    await problem.to_response()(scope, receive, send)


def bounded_protocol(limits: ServerLimits, waiting: Connections) -> type[asyncio.Protocol]:
    """Return the protocol with the bounds of one server."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "waiting": waiting, "__slots__": ()})

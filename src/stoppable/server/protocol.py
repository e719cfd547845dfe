"""HTTP connections that cannot be used to fill our memory or to wait for ever."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stoppable.server.limits import ServerLimits
from stoppable.server.stream_connection import StreamConnection, offered

_REFUSAL = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
_TOO_LARGE = b'{"error":{"code":"head_too_large","message":"the headers are too large"}}'
_TOO_SLOW = b'{"error":{"code":"too_slow","message":"the request did not arrive in time"}}'


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a bound on the size of a request's head and on the time it takes to arrive.

    The parser itself has neither: it would collect one header line until the memory is full.
    """

    __slots__ = ("_head_bytes", "_head_timer", "_is_in_head")  # a few more in its dict would double that

    limits: ClassVar[ServerLimits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._head_bytes: int | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._end_head()
        if self.scope is not None:
            self.scope.pop("extensions", None)  # it leads back here, and would keep both
        super().connection_lost(exc)

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
        self._begin_head()

    def on_headers_complete(self) -> None:
        """Wait no longer."""
        self._end_head()
        super().on_headers_complete()

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

    def _begin_head(self) -> None:
        self._is_in_head = True
        self._head_bytes = None
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self._too_slow)

    def _end_head(self) -> None:
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        self._refuse(b"408 Request Timeout", _TOO_SLOW)

    def _refuse(self, status: bytes, body: bytes) -> None:
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:  # otherwise it would end up in a response
                self.transport.write(_REFUSAL % (status, len(body), body))
            self.transport.close()


def bounded_protocol(limits: ServerLimits) -> type[asyncio.Protocol]:
    """Return the protocol with the bounds of one server."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "__slots__": ()})

"""Bounded HTTP connections: a client cannot fill the memory, wait for ever, or use up all connections."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stoppable._core import clock
from stoppable.server.limits import ServerLimits
from stoppable.server.responses import Problem
from stoppable.server.shares import CUT, IN_RESERVE, is_stop

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_logger = logging.getLogger("stoppable.server")

_MOST_FILES = 65_536  # processes of runs inherit the limit, and some programs loop over all possible descriptors
_SPARE_FILES = 128  # for the store, the agents and the loop
_LOG_SECONDS = 10.0
_BACKLOG = 512
_STREAM_BUFFER = 65_536
_FOR_STOPS = 256  # connections beyond the limit that only a stop may use


class Connection(Protocol):
    """A connection that can be cut."""

    def cut(self) -> None:
        """Close the connection at once."""
        ...


@dataclass(slots=True)
class _Told:
    """When something was logged last, and how often it has happened since."""

    at: float = -_LOG_SECONDS
    count: int = 0


_FULL = "the server has all the connections that it may have"


class Connections:
    """The connections whose client owes the server something: a request, or the rest of one.

    A client without a key can hold only such connections, so these give way: when the server is full, or one address
    holds more than its share, the one that has waited longest is closed for a new one. A stop request arrives in one
    piece, so it is complete before it could be closed.
    """

    def __init__(self, most: int, per_address: int) -> None:
        self.most: int = most
        self.for_stops: int = _FOR_STOPS
        self._per_address = per_address
        self._owing: dict[Connection, str] = {}
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._told: dict[str, _Told] = {}

    def owes(self, connection: Connection, address: str) -> None:
        """Add a connection that owes something."""
        self._owing[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        if len(self._by_address[address]) > self._per_address:
            self._cut_first(self._by_address[address], "one address has too many connections without a request")

    def paid(self, connection: Connection) -> None:
        """Remove a connection."""
        address = self._owing.pop(connection, None)
        if address is not None:
            same = self._by_address[address]
            del same[connection]
            if not same:
                del self._by_address[address]

    def make_room(self, count: int) -> bool:
        """Return whether another connection may be used besides ``count``; closes one that waits if necessary."""
        return count < self.most or self._cut_first(self._owing, _FULL)

    def fit_into_open_files(self) -> int:
        """Lower the limits to what this process may open, and return how many connections to accept in one go."""
        files = open_file_limit()
        backlog = max(16, min(_BACKLOG, files // 4))
        self.for_stops = max(16, min(_FOR_STOPS, files // 8))
        most = max(files - _SPARE_FILES - backlog - self.for_stops, 16)
        if most < self.most:
            _logger.warning(
                "only %d connections instead of %d: this process may open %d files (ulimit -n)", most, self.most, files
            )
            self.most = most
        return backlog

    def _cut_first(self, among: dict[Connection, None] | dict[Connection, str], why: str) -> bool:
        first = next(iter(among), None)
        if first is None:
            return False
        self.paid(first)
        first.cut()
        self._tell(why, "closed the %d that waited longest")
        return True

    def refuse(self) -> None:
        """Log that a connection, or a request that is not a stop, was refused."""
        self._tell(_FULL, "refused %d, because all of them are in use (limit connections)")

    def _tell(self, why: str, what: str) -> None:
        told = self._told.setdefault(what, _Told())
        told.count += 1
        now = clock.now()
        if now - told.at >= _LOG_SECONDS:  # a flood must not fill the log
            _logger.warning("%s: %s", why, what % told.count)
            told.at, told.count = now, 0


def open_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, up to a bound, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they say
        return soft
    return wanted


_REFUSAL = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
_TOO_LARGE = b'{"error":{"code":"head_too_large","message":"the headers are too large"}}'
_TOO_SLOW = b'{"error":{"code":"too_slow","message":"the request did not arrive in time"}}'
_NO_HTTP = b'{"error":{"code":"bad_request","message":"this is not an HTTP request"}}'
_BODY = frozenset({b"content-length", b"transfer-encoding"})
_MARGIN = 1.0  # a request that reads a body has its own timeout, which comes first
_LAST_READ_SECONDS = 2.0  # uvicorn cancels what is left after three, and logs it as an error


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with bounds on the size of a request head and on the time to wait for a client.

    The parser has neither: a header line without end would fill the memory, and one extra byte after a response would
    keep the connection open for ever.
    """

    # in its dict they would double
    __slots__ = ("_address", "_head_bytes", "_is_in_head", "_is_in_request", "_slow_timer", "_timer")

    limits: ClassVar[ServerLimits]
    waiting: ClassVar[Connections]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._is_in_request = False
        self._head_bytes: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._slow_timer: asyncio.TimerHandle | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request; if the server is full, close a connection that has waited longer."""
        there = len(self.connections)
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if not self.waiting.make_room(there) and there >= self.waiting.most + self.waiting.for_stops:
            self.waiting.refuse()
            self.cut()
            return
        self._wait(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._wait_no_longer()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        super().connection_lost(exc)

    def cut(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)  # counted out now, because the loop reports it only later
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Count the bytes of an incomplete head, except its first chunk, which may hold earlier requests."""
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
        """Stop waiting for the body; if the request was answered already, wait for the next one."""
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
        """Count the connection among those that owe something: the client does not read."""
        super().pause_writing()
        self.waiting.owes(self, self._address)
        self._cut_unless_read()

    def resume_writing(self) -> None:
        """Resume sending."""
        super().resume_writing()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        if self._timer is None:
            self.waiting.paid(self)

    def shutdown(self) -> None:
        """End with the response; a client that takes nothing must not hold up the end of the server."""
        super().shutdown()
        if self.flow.write_paused:
            self.loop.call_later(_LAST_READ_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's name
        """Refuse an invalid request."""
        self._refuse(b"400 Bad Request", _NO_HTTP)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if len(self.connections) > self.waiting.most:
            if is_stop(cycle.scope):
                cycle.scope[IN_RESERVE] = True
            else:
                self.waiting.refuse()
                app = _too_many
        if cycle.scope["path"].endswith("/events"):
            cycle.scope[CUT] = self.cut
            self._buffer_little()
        super()._start_asgi_task(cycle, app)

    def _buffer_little(self) -> None:
        """Keep little of a stream in memory: many clients may not read theirs.

        The system would buffer megabytes for each client, which cost more time to copy than they are worth.
        """
        self.transport.set_write_buffer_limits(high=0)
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _STREAM_BUFFER)

    def _cut_unless_read(self, before: int | None = None) -> None:
        """Cut a client off that takes nothing: what is buffered for it would stay, and a close waits for it."""
        unread = self.transport.get_write_buffer_size()
        if before is not None and unread >= before:
            self.transport.abort()
            return
        self._slow_timer = self.loop.call_later(2 * self.limits.slow_seconds, self._cut_unless_read, unread)

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
        if self.flow.read_paused:  # the server keeps the client waiting
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


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    message = "the server has all the connections that it may have: try again; stops are still taken"
    problem = Problem(503, "too_many_connections", message, {"Retry-After": "1", "Connection": "close"})
    await problem.to_response()(scope, receive, send)


def bounded_protocol(limits: ServerLimits, waiting: Connections) -> type[asyncio.Protocol]:
    """Return the protocol with the bounds of one server."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "waiting": waiting, "__slots__": ()})

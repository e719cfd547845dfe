"""The limits of a server: on its connections, and on the share of it that one owner may use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stoppable._core import clock
from stoppable._core.values import Limits, Policy
from stoppable.server.responses import Problem

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of one server; an error names the limit that a request exceeds."""

    body_bytes: int = 1_000_000
    body_seconds: float = 30.0
    """How long a client may take to send the body of a request."""
    head_bytes: int = 32_768
    head_seconds: float = 15.0
    """How long a client may take to send the head of a request."""
    connections: int = 8_192
    """How many connections there may be; beyond that, some more are reserved for stops."""
    address_connections: int = 2_048
    """How many connections without a complete request one address may hold."""
    streams: int = 4_096
    owner_connections: int = 2_048
    """How many requests of one owner may be in progress, streams included; at most half of ``connections``."""
    owner_streams: int = 1_024
    """How many streams one owner may follow; at most half of ``streams``."""
    owner_waits: int = 512
    """How many stops of one owner may wait for an end; at most half of ``connections``. Others are answered at once."""
    owner_runs: int = 1_000
    """How many live runs an owner may have in this process; runs without an owner are not counted."""
    owner_processes: int = 32
    """How many of them may have ``isolation="process"``."""
    stream_bytes: int = 64_000_000
    """How much memory large events may take that are being sent to readers, before the slowest reader is dropped."""
    owner_stream_bytes: int = 16_000_000
    """The same for the readers of one owner."""
    rung_seconds: float = 300.0
    """The longest grace, and the longest time of each rung, that a client may ask for."""
    run_seconds: float | None = None
    """The longest time that a client's run may take, even if the client asks for no limit."""
    heartbeat: float = 15.0
    """How many seconds without an event pass before a stream gets a comment, so that proxies keep it open."""
    slow_seconds: float = 20.0
    """How long a reader may read nothing before it is dropped; it can resume."""
    disconnect_grace: float = 1.0
    """How long a run with ``onDisconnect: stop`` waits for its last reader to come back."""

    def policy(self, policy: Policy | None) -> Policy | None:
        """Return the policy that a client gets: what it asks for, up to the limit of each rung."""
        if policy is None:
            return None
        rungs = ("grace", "interrupt", "cancel", "kill")
        return replace(policy, **{rung: min(getattr(policy, rung), self.rung_seconds) for rung in rungs})

    def grace(self, grace: float | None) -> float | None:
        """Return the grace that a stop gets."""
        return None if grace is None else min(grace, self.rung_seconds)

    def limits(self, limits: Limits | None) -> Limits | None:
        """Return the limits that a run gets."""
        if self.run_seconds is None:
            return limits
        if limits is None:
            return Limits(seconds=self.run_seconds)
        return replace(limits, seconds=min(limits.seconds or self.run_seconds, self.run_seconds))


IN_RESERVE = "stoppable.in_reserve"
"""Set in the scope of a request whose connection is one of those that are reserved for stops."""


CUT = "stoppable.cut"
"""In the scope of a stream: a function that closes its connection at once."""


def is_stop(scope: Scope) -> bool:
    """Return whether a request is a stop, which is taken even if the server or the share of its owner is full."""
    path: str = scope["path"]
    return scope["method"] == "POST" and path.endswith(("/stop", "/stops", "/cancel", ":cancel"))


class Shares:
    """The requests in progress of each owner: how many there are, and how many of them wait for the end of a stop.

    However large its limits are, one owner gets at most half of the connections. Callers without an owner see all runs;
    they have no share, only the limits of the server.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.connections: int = limits.connections
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()

    @contextlib.contextmanager
    def request(self, owner: str | None, scope: Scope) -> Iterator[None]:
        """Count a request while it is in progress, or refuse it; a stop is never refused."""
        most = self._share(self._limits.owner_connections)
        if owner is not None and self._requests[owner] >= most and not is_stop(scope):
            message = (
                f"owner {owner!r} has {self._requests[owner]} requests in progress, which is the limit here: "
                "close some streams, or try later; stops are still taken"
            )
            raise Problem(429, "too_many_requests", message, {"Retry-After": "1"})
        with _counting(self._requests, owner):
            yield

    @contextlib.contextmanager
    def wait(self, owner: str | None, scope: Scope, seconds: float) -> Iterator[float | None]:
        """Yield how long a stop may wait for the end of its runs; None if it is answered once it is stored.

        A stop that waits keeps its connection. In the reserve, or beyond the share of its owner, it would keep other
        stops from getting through.
        """
        is_full = owner is not None and self._waits[owner] >= self._share(self._limits.owner_waits)
        if not seconds or is_full or IN_RESERVE in scope:
            yield None
            return
        with _counting(self._waits, owner):
            yield seconds

    def _share(self, limit: int) -> int:
        return max(1, min(limit, self.connections // 2))


@contextlib.contextmanager
def _counting(counter: Counter[str], owner: str | None) -> Iterator[None]:
    if owner is None:
        yield
        return
    counter[owner] += 1
    try:
        yield
    finally:
        counter[owner] -= 1
        if not counter[owner]:
            del counter[owner]  # owners come and go


_logger = logging.getLogger("stoppable.server")

_MOST_FILES = 65_536  # processes of runs inherit the limit, and some programs loop over all possible descriptors
_SPARE_FILES = 128  # for the store, the agents and the loop
_LOG_SECONDS = 10.0
_BACKLOG = 512
_STREAM_BUFFER = 65_536
_RESERVED_FOR_STOPS = 256  # connections beyond the limit that only a stop may use


class IdleConnection(Protocol):
    """A connection that can be cut."""

    def cut(self) -> None:
        """Close the connection at once."""
        ...


@dataclass(slots=True)
class _LogThrottle:
    """When something was logged last, and how often it has happened since."""

    at: float = -_LOG_SECONDS
    count: int = 0


_FULL = "the server has all the connections that it may have"


class IdleConnections:
    """Connections that wait for their client: for a request, the rest of one, or for the response to be read.

    A client without a key can hold only such connections, so these give way: when the server is full, or one address
    holds more than its share, the one that has waited longest is closed for a new one. A stop request arrives in one
    piece, so it is complete before it could be closed.
    """

    def __init__(self, limit: int, per_address: int) -> None:
        self.limit: int = limit
        self.reserved_for_stops: int = _RESERVED_FOR_STOPS
        self.connections: Collection[object] = ()
        """All connections of the server."""
        self.refused: int = 0
        self.closed: int = 0
        self._per_address = per_address
        self._idle: dict[IdleConnection, str] = {}
        self._by_address: dict[str, dict[IdleConnection, None]] = {}
        self._throttles: dict[str, _LogThrottle] = {}

    def add_idle(self, connection: IdleConnection, address: str) -> None:
        """Add a connection that waits for its client; closes another one if its address has too many."""
        self._idle[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        if len(self._by_address[address]) > self._per_address:
            self._cut_first(self._by_address[address], "one address has too many connections without a request")

    def remove(self, connection: IdleConnection) -> None:
        """Remove a connection, which has its request or is gone."""
        address = self._idle.pop(connection, None)
        if address is not None:
            same = self._by_address[address]
            del same[connection]
            if not same:
                del self._by_address[address]

    def make_room(self, count: int) -> bool:
        """Return whether another connection may be used besides ``count``; closes one that waits if necessary."""
        return count < self.limit or self._cut_first(self._idle, _FULL)

    def fit_into_open_files(self) -> int:
        """Lower the limits to what this process may open, and return how many connections to accept in one go."""
        files = open_file_limit()
        backlog = max(16, min(_BACKLOG, files // 4))
        self.reserved_for_stops = max(16, min(_RESERVED_FOR_STOPS, files // 8))
        limit = max(files - _SPARE_FILES - backlog - self.reserved_for_stops, 16)
        if limit < self.limit:
            _logger.warning(
                "only %d connections instead of %d: this process may open %d files (ulimit -n)",
                limit,
                self.limit,
                files,
            )
            self.limit = limit
        return backlog

    def _cut_first(self, among: dict[IdleConnection, None] | dict[IdleConnection, str], why: str) -> bool:
        first = next(iter(among), None)
        if first is None:
            return False
        self.remove(first)
        first.cut()
        self.closed += 1
        self._log(why, "closed the %d that waited longest")
        return True

    def refuse(self) -> None:
        """Count and log that a connection, or a request that is not a stop, was refused."""
        self.refused += 1
        self._log(_FULL, "refused %d, because all of them are in use (limit connections)")

    def _log(self, why: str, what: str) -> None:
        throttle = self._throttles.setdefault(what, _LogThrottle())
        throttle.count += 1
        now = clock.now()
        if now - throttle.at >= _LOG_SECONDS:  # a flood must not fill the log
            _logger.warning("%s: %s", why, what % throttle.count)
            throttle.at, throttle.count = now, 0


def open_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, up to a bound, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they say
        return soft
    return target


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

    # Attributes in the instance dict would double its size.
    __slots__ = ("_address", "_head_bytes", "_is_in_head", "_is_in_request", "_slow_timer", "_timer")

    limits: ClassVar[ServerLimits]
    idle: ClassVar[IdleConnections]

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
        count = len(self.connections)
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if not self.idle.make_room(count) and count >= self.idle.limit + self.idle.reserved_for_stops:
            self.idle.refuse()
            self.cut()
            return
        self._wait(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and count the connection no longer."""
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
        """Wait for the head of a request, with its own timeout."""
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
        """Count the connection as idle: the client does not read."""
        super().pause_writing()
        self.idle.add_idle(self, self._address)
        self._cut_unless_read()

    def resume_writing(self) -> None:
        """Resume sending, because the client reads again."""
        super().resume_writing()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        if self._timer is None:
            self.idle.remove(self)

    def shutdown(self) -> None:
        """End with the response; a client that takes nothing must not hold up the end of the server."""
        super().shutdown()
        if self.flow.write_paused:
            self.loop.call_later(_LAST_READ_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's name
        """Refuse what is not HTTP, in the format of our other errors."""
        self._refuse(b"400 Bad Request", _NO_HTTP)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if len(self.connections) > self.idle.limit:
            if is_stop(cycle.scope):
                cycle.scope[IN_RESERVE] = True
            else:
                self.idle.refuse()
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
        self.idle.add_idle(self, self._address)

    def _wait_no_longer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.idle.remove(self)

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


def bounded_protocol(limits: ServerLimits, idle: IdleConnections) -> type[asyncio.Protocol]:
    """Return the protocol with the bounds of one server."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "idle": idle, "__slots__": ()})

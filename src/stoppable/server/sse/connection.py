"""A stream of events that is nothing but a connection.

A run may be silent for hours while somebody follows it. A response of an ASGI server costs a task all that time, with
the frames, the request and the parser that belong to it: many times what the connection itself does. So our own server
(http_protocol.py) hands the connection over once the head of the response is sent, and work begins when there is news.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from starlette.types import Scope

from stoppable._core import clock
from stoppable.server.sse.reader import Reader
from stoppable.server.sse.streams import Streams
from stoppable.server.sse.views import View

_logger = logging.getLogger("stoppable.server")

EXTENSION = "stoppable.stream"
"""The ASGI extension with which our server offers to hand the connection of a request over."""
_LIVELY_SECONDS = 1.0  # after something was sent, in which a task waits for more

HandOver: TypeAlias = "Callable[[StreamConnection], bool]"
"""Gives the connection of a request away; False if that is not possible."""


def hand_over_of(scope: Scope) -> HandOver | None:
    """Return what the server of a request offers."""
    found: HandOver | None = scope.get("extensions", {}).get(EXTENSION, {}).get("hand_over")
    return found


class StreamConnection(Reader, asyncio.Protocol):
    """A reader that has the connection to itself, up to its end, and a task only while it sends."""

    __slots__ = ("_connections", "_cut", "_room", "_task", "_transport")

    _transport: asyncio.Transport

    def __init__(self, streams: Streams, view: View, after: int) -> None:
        super().__init__(streams, view, after)
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._cut: asyncio.TimerHandle | None = None

    def take_over(self, transport: asyncio.Transport, connections: set[Any]) -> None:
        """Follow the run from here on; ``connections`` are those that the server counts, and waits for at its end.

        There is room to write: the server has waited for some before it sent the head of the response.
        """
        self._transport, self._connections = transport, connections
        connections.add(self)
        self._join()
        if transport.is_closing():
            self.connection_lost(None)
        else:
            transport.set_protocol(self)
            self.wake()

    # What the event loop calls

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """Leave; the policy of the run says what that means."""
        self._is_gone = True
        self._connections.discard(self)
        self._leave()
        if self._task is not None:
            self._task.cancel()
        if self._cut is not None:
            self._cut.cancel()

    def data_received(self, data: bytes) -> None:
        """Ignore what follows: the response said that this request is the last one of its connection."""

    def pause_writing(self) -> None:
        """Wait for room."""
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Go on."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    # What the server calls

    def shutdown(self) -> None:
        """Wait no longer for a client to close; whoever shuts the server down has drained its streams."""
        if self._cut is not None:
            self._transport.close()

    def wake(self) -> None:
        """Look at the log again."""
        super().wake()
        if self._task is None and self._feed is not None:
            work = self._work()
            # It belongs neither to the run that has the news nor to a request.
            self._task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())

    async def _work(self) -> None:
        try:
            last = await self._follow()
        except asyncio.CancelledError:
            if not self._is_slow or self._is_gone:
                self._transport.abort()
                raise
            last = self._too_slow()
        except Exception:
            _logger.exception("a stream of %s failed", self.view.name)
            self._transport.abort()
            return
        self._task = None
        if last is not None:
            self._end(last)

    def _stays(self) -> bool:
        # A task for each token would cost more than all that it does.
        return clock.now() - self._sent_at < _LIVELY_SECONDS

    async def _write(self, chunk: bytes) -> None:
        if self._room is not None:
            await self._room  # check() gives it up in time
        self._transport.write(_framed(chunk))

    def _give_up(self) -> None:
        assert self._task is not None, "it is sending"
        self._task.cancel()

    def _end(self, last: bytes) -> None:
        self._leave()
        self._transport.write(_framed(last) + b"0\r\n\r\n")
        # The client closes first. If we did while it sends something, the end of the stream would be lost on its way: a
        # socket that is closed with bytes unread is reset. One that takes nothing, or does not close, is cut off.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
        self._cut = asyncio.get_running_loop().call_later(self._streams.limits.slow_seconds, self._transport.abort)


def _framed(chunk: bytes) -> bytes:
    """Return a piece of a response whose length is not known before."""
    return b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunk else b""

"""One connection to a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from asyncio import AbstractEventLoop, Task, Transport
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from stoppable.testing import model_wire as wire
from stoppable.testing.model_record import Ending, Record
from stoppable.testing.model_script import Failure, Reply, Stuck, Turn
from stoppable.testing.model_wire import Request

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Talk(asyncio.Protocol):
    """One connection, on the server's loop."""

    def __init__(self, record: Record, next_turn: Callable[[], Turn], loop: AbstractEventLoop) -> None:
        self._record = record
        self._next_turn = next_turn
        self._loop = loop
        self._buffer = bytearray()
        self._answering: Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("Transport", transport)
        self._connection = self._record.connected()

    def data_received(self, data: bytes) -> None:
        """Serve what is complete."""
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
        self._record.closed(self._connection, ending)
        if self._answering is not None:
            self._answering.cancel()

    def _serve_next(self) -> None:
        if self._answering is None:
            request = wire.parse(self._buffer, self._connection.number)
            if request is not None:
                self._record.requested(self._connection, request)
                self._answering = self._loop.create_task(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            await self._answer(request)
        finally:
            self._answering = None
        self._serve_next()

    def _finish(self, data: bytes) -> None:
        # Noted first: a test may check it as soon as the client has the whole answer.
        self._record.answered(self._connection)
        self._transport.write(data)

    async def _answer(self, request: Request) -> None:
        match request.method, request.path:
            case "GET", "/v1/models":
                self._finish(wire.models())
            case "POST", "/v1/chat/completions":
                await self._complete(request)
            case _:
                self._finish(wire.error(HTTPStatus.NOT_FOUND, f"no {request.method} {request.path} here"))

    async def _complete(self, request: Request) -> None:
        try:
            is_streamed, _ = request.is_streamed, request.messages
        except (json.JSONDecodeError, AttributeError, LookupError):
            self._finish(wire.error(HTTPStatus.BAD_REQUEST, "this is no chat completion"))
            return
        match self._next_turn():
            case Stuck():
                await self._loop.create_future()
            case Failure() as failure:
                self._finish(wire.error(failure.status, failure.message, failure.headers))
            case Reply() as reply:
                await asyncio.sleep(reply.delay)
                await (self._stream(request, reply) if is_streamed else self._reply(request, reply))

    async def _reply(self, request: Request, reply: Reply) -> None:
        for sent, _ in enumerate(reply.tokens):
            await reply.pace()
            if reply.drop_after == sent:
                return await self._drop()
        self._record.sent(len(reply.tokens))
        self._finish(wire.completion(request, reply))
        return None

    async def _stream(self, request: Request, reply: Reply) -> None:
        self._transport.write(wire.stream_head(request))
        for sent, token in enumerate(reply.tokens):
            await reply.pace()
            if reply.drop_after == sent:
                return await self._drop()
            self._record.sent(1)
            self._transport.write(wire.stream_token(request, token))
        self._finish(wire.stream_tail(request, reply))
        return None

    async def _drop(self) -> None:
        """Reset the connection, as a proxy does that gives up."""
        with contextlib.suppress(OSError):
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._end(Ending.SERVER)
        self._transport.abort()
        await self._loop.create_future()  # it was cancelled just now

"""A scripted model on loopback, to see what a stop does to real clients."""

from __future__ import annotations

import asyncio
import socket
import threading
import weakref
from asyncio import AbstractEventLoop
from collections import deque
from types import TracebackType
from typing import Self

from stoppable.testing.model_record import Connection, Ending, Record
from stoppable.testing.model_script import Failure, Gate, Reply, Stuck, ToolCall, Turn
from stoppable.testing.model_talk import Talk
from stoppable.testing.model_wire import Request

__all__ = ["Connection", "Ending", "Failure", "Gate", "ModelServer", "Reply", "Request", "Stuck", "ToolCall", "Turn"]

_DEADLINE = 30.0
_OK = Reply("ok")


class ModelServer(Record):
    """A scripted model server that speaks chat completions, streamed or not, and records what its clients do.

    Each request gets the next reply of the script; after the last one, ``default``. Tokens are counted as they are
    sent, so that a test can tell how many came after a stop.
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
        """Add to the script."""
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

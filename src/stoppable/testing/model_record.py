"""What a scripted model saw of its clients, and how a test waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from enum import StrEnum

from stoppable.testing.model_wire import Request

_DEADLINE = 30.0  # a wait ends at once, unless the test fails


class Ending(StrEnum):
    """How a connection was closed."""

    AFTER_ANSWER = "after_answer"  # by the client, with nothing outstanding
    MID_ANSWER = "mid_answer"  # by the client, in order, before the answer was complete
    RESET = "reset"  # by the client, with tokens it had not read
    SERVER = "server"


class Connection:
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
        self._requests: list[Request] = []
        self._connections: list[Connection] = []
        self._tokens = 0
        self._tokens_at_stop: int | None = None

    @property
    def requests(self) -> list[Request]:
        """Every request so far."""
        return list(self._requests)

    @property
    def connections(self) -> list[Connection]:
        """Every connection so far."""
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

    def wait_for_request(self, count: int = 1, within: float = _DEADLINE) -> Request:
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

    async def wait_for_request_async(self, count: int = 1, within: float = _DEADLINE) -> Request:
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
        seen = f"{len(self._requests)} requests, {self._tokens} tokens, {self._connections}"
        return f"no {what} within {within} seconds; there were {seen}"

    # Called by its connections

    def connected(self) -> Connection:
        """Note a new connection."""
        with self._changed:
            connection = Connection(len(self._connections))
            self._connections.append(connection)
            self._changed.notify_all()
        return connection

    def requested(self, connection: Connection, request: Request) -> None:
        """Note a request."""
        with self._changed:
            connection.requests += 1
            self._requests.append(request)
            self._changed.notify_all()

    def sent(self, tokens: int) -> None:
        """Note tokens that go out."""
        with self._changed:
            self._tokens += tokens
            self._changed.notify_all()

    def answered(self, connection: Connection) -> None:
        """Note that an answer is complete."""
        with self._changed:
            connection.answers += 1
            self._changed.notify_all()

    def closed(self, connection: Connection, ending: Ending) -> None:
        """Note how a connection was closed; the first report counts."""
        with self._changed:
            connection.ending = connection.ending or ending
            self._changed.notify_all()

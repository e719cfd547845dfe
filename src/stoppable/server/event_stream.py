"""One stream of events to one client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoppable._core import clock
from stoppable.errors import StoppableError
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.encoding import dumps

if TYPE_CHECKING:
    from stoppable.server.streams import Feed, Streams

_READ = 200  # events at a time
_SEND_BYTES = 262_144  # an event may have a megabyte: not many of them in one piece
_HEARTBEAT = b":\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
]


LATER = "stoppable.later"
"""Where in a scope a middleware takes streams over: the framework would keep all it made for a request meanwhile."""


class EventStream(Response):
    """Sends what a run's log has, then what comes, until ``done``.

    It reads from the store what it sends, so a slow client holds up nobody and costs no memory; one that takes nothing
    for long is dropped with a ``dropped`` event and may resume after the last event that it has.
    """

    __slots__ = (
        "_after",
        "_has_news",
        "_is_gone",
        "_is_replay",
        "_is_slow",
        "_sending_since",
        "_sent_at",
        "_streams",
        "_task",
        "_waiter",
        "run_id",
        "stops_run",
    )

    status_code = 200
    background = None

    def __init__(self, streams: Streams, record: RunRecord, after: int) -> None:
        self.raw_headers = [
            *_HEADERS,
            (b"stoppable-run-id", record.id.encode()),
        ]  # nothing else of a Response is needed
        self.run_id = record.id
        self.stops_run = record.on_disconnect == "stop"
        self._is_replay = record.over
        self._after = min(after, record.last_event)  # nobody has seen what has not happened
        self._streams = streams
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._has_news = False
        self._is_gone = False
        self._is_slow = False
        self._sending_since: float | None = None
        self._sent_at = clock.now()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, here or in the middleware that asked for it."""
        later: list[EventStream] | None = scope.get(LATER)
        if later is None:
            await self.run(receive, send)
        else:
            later.append(self)

    async def run(self, receive: Receive, send: Send) -> None:
        """Send it until its end."""
        self._task = asyncio.current_task()
        assert self._task is not None, "a request has a task"
        feed = self._streams.join(self)
        watcher = asyncio.create_task(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = await self._follow(feed, send)
        except asyncio.CancelledError:
            if not self._is_slow or self._task.uncancel() > 0:
                raise
            last = _marker("dropped", after=self._after, message="you read too slowly: resume after the last event")
        except OSError:  # some servers tell in this way that the client is gone
            self._is_gone, last = True, b""
        finally:
            watcher.cancel()
            self._streams.leave(self, is_gone=self._is_gone or self._is_slow)
        if not self._is_gone:
            await self._send_last(send, last)

    async def _send_last(self, send: Send, last: bytes) -> None:
        # It goes out once there is room; a client that still takes nothing finds the connection closed.
        try:
            async with asyncio.timeout(self._streams.limits.slow_seconds):
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            pass

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self.wake()

    async def _follow(self, feed: Feed, send: Send) -> bytes:
        store = self._streams.supervisor.store
        while not self._is_gone:
            self._has_news = False
            try:
                events = await store.read(self.run_id, self._after, _READ)
            except StoppableError:
                return _marker("dropped", after=self._after, message="the store does not answer: resume later")
            if events:
                chunk, last = _joined(feed, events)
                if last.type is EventType.DONE:
                    return chunk
                await self._send(send, chunk)
                self._after = last.seq
            elif self._is_replay:
                return b""
            elif self._streams.is_draining:
                return _marker("shutdown", after=self._after, message="the server shuts down: resume elsewhere")
            else:
                if clock.now() - self._sent_at >= self._streams.limits.heartbeat:
                    await self._send(send, _HEARTBEAT)
                await self._wait()
        return b""

    async def _send(self, send: Send, chunk: bytes) -> None:
        self._sending_since = self._sent_at = clock.now()
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._sending_since = None

    async def _wait(self) -> None:
        if not self._has_news:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def wake(self) -> None:
        """Look at the log again."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def tick(self, now: float) -> None:
        """Look again now and then, and give a client up that takes nothing."""
        if self._sending_since is None:
            self.wake()
        elif now - self._sending_since > self._streams.limits.slow_seconds and not self._is_slow:
            self._is_slow = True
            assert self._task is not None, "it is sending"
            self._task.cancel()


def _joined(feed: Feed, events: Sequence[Event]) -> tuple[bytes, Event]:
    """Return events as they are sent, as many as fit into one piece, up to the end, and the last of them."""
    chunks, size, last = [], 0, events[0]
    for last in events:
        chunks.append(feed.encode(last))
        size += len(chunks[-1])
        if size >= _SEND_BYTES or last.type is EventType.DONE:
            break
    return b"".join(chunks), last


def _marker(name: str, **data: object) -> bytes:
    """Return an event about the stream itself; without an id, so that a client resumes where it was."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), dumps(data))

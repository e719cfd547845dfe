"""A stream of events as a response: of any ASGI server, or of ours, which takes its connection over."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoppable.server.sse.connection import StreamConnection, hand_over_of
from stoppable.server.sse.reader import Reader
from stoppable.server.sse.streams import Streams
from stoppable.server.sse.views import LogView, View

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),  # a proxy must not collect events
]
_LAST_REQUEST = (b"connection", b"close")


def open_stream(streams: Streams, view: View, after: int) -> Response:
    """Return a response that follows something, if there is room for one more."""
    streams.check_room()
    return EventStream(streams, view, after)


async def resume_stream(streams: Streams, view: LogView, after: int) -> Response:
    """Return a response that goes on after a number that the client has; 204 if it has seen the end."""
    # A number of another store, or of none, is answered from the end: nobody has seen what has not happened.
    newest, is_seen = await view.position(streams.store, after)
    if view.is_replay and is_seen:
        return Response(status_code=204)  # a browser resumes after every end but this
    return open_stream(streams, view, min(after, newest))


class EventStream(Response):
    """Sends what a view has after a number."""

    def __init__(self, streams: Streams, view: View, after: int) -> None:
        super().__init__()
        run_id = [(b"stoppable-run-id", view.run_id.encode())] if view.run_id else []
        self.raw_headers: list[tuple[bytes, bytes]] = [*_HEADERS, *run_id]
        self._streams, self._view, self._after = streams, view, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; a stream that lasts leaves everything that was made for its request, if the server is ours."""
        hand_over = None if self._view.is_replay else hand_over_of(scope)
        headers = self.raw_headers if hand_over is None else [*self.raw_headers, _LAST_REQUEST]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if hand_over is None or not hand_over(StreamConnection(self._streams, self._view, self._after)):
            await _Request(self._streams, self._view, self._after, send).run(receive)


class _Request(Reader):
    """A reader within the request of any ASGI server."""

    __slots__ = ("_send_message", "_task")

    def __init__(self, streams: Streams, view: View, after: int, send: Send) -> None:
        super().__init__(streams, view, after)
        self._send_message = send
        self._task: asyncio.Task[object] | None = None

    async def run(self, receive: Receive) -> None:
        """Send it until its end."""
        self._task = asyncio.current_task()
        assert self._task is not None, "a request has a task"
        self._join()
        watcher = asyncio.create_task(self._watch(receive))
        try:
            last = await self._follow() or b""
        except asyncio.CancelledError:
            if not self._is_slow or self._task.uncancel() > 0:
                raise
            last = self._too_slow()
        except OSError:  # some servers tell in this way that the client is gone
            self._is_gone, last = True, b""
        finally:
            watcher.cancel()
            self._leave()
        if not self._is_gone:
            await self._send_last(last)

    async def _send_last(self, last: bytes) -> None:
        # It goes out once there is room; a client that still takes nothing finds the connection closed.
        try:
            async with asyncio.timeout(self._streams.limits.slow_seconds):
                await self._send_message({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            pass

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self.wake()

    async def _write(self, chunk: bytes) -> None:
        await self._send_message({"type": "http.response.body", "body": chunk, "more_body": True})

    def _give_up(self) -> None:
        assert self._task is not None, "it is sending"
        self._task.cancel()

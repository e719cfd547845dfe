"""A stream of events as a response."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoppable.server.shares import CUT
from stoppable.server.sse.reader import Reader
from stoppable.server.sse.streams import Streams
from stoppable.server.sse.views import LogView, View

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),  # a proxy must not buffer events
]


def open_stream(streams: Streams, view: View, after: int, owner: str | None) -> Response:
    """Return a streaming response, or refuse it if too many are open; ``owner`` is that of the caller."""
    streams.check_room(owner)
    return EventStream(streams, view, after, owner)


async def resume_stream(streams: Streams, view: LogView, after: int, owner: str | None) -> Response:
    """Return a response that resumes after the client's last number; 204 if the client has seen the end."""
    # A number beyond the end, such as one of another store, is answered from the end.
    newest, is_seen = await view.position(streams.store, after)
    if view.is_replay and is_seen:
        return Response(status_code=204)  # a browser reconnects after every other end
    return open_stream(streams, view, min(after, newest), owner)


class EventStream(Response):
    """Sends the events of a view after a number."""

    def __init__(self, streams: Streams, view: View, after: int, owner: str | None) -> None:
        super().__init__()
        run_id = [(b"stoppable-run-id", view.run_id.encode())] if view.run_id else []
        self.raw_headers: list[tuple[bytes, bytes]] = [*_HEADERS, *run_id]
        self._streams, self._view, self._after, self._owner = streams, view, after, owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, until its end or until the client goes away."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        reader = Reader(self._streams, self._view, self._after, self._owner, send)
        await reader.run(receive, scope.get(CUT))

"""One client that follows a run, or the changes of all runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Send

from stoppable._core import clock
from stoppable.errors import StoppableError
from stoppable.server.sse.feed import Feed, message
from stoppable.server.sse.streams import Streams
from stoppable.server.sse.views import SEND_BYTES, Behind, View

_HEARTBEAT = b":\n\n"
_END = b"\n\n"


class Reader:
    """Sends the past events of a view, then live ones, until its end.

    It reads events from the store when it can send them, so a slow client delays nothing and costs no memory. A client
    that reads nothing for long is dropped with a ``dropped`` event, and may resume after the last event that it has.
    """

    __slots__ = (
        "_after",
        "_feed",
        "_has_news",
        "_is_gone",
        "_is_in_event",
        "_is_over",
        "_is_slow",
        "_send_message",
        "_sending_since",
        "_sent_at",
        "_streams",
        "_task",
        "_waiter",
        "owner",
        "view",
    )

    def __init__(self, streams: Streams, view: View, after: int, owner: str | None, send: Send) -> None:
        self.view: View = view
        self.owner: str | None = owner
        self._send_message = send
        self._is_over = view.is_replay
        self._after = after
        self._streams = streams
        self._feed: Feed | None = None
        self._has_news = False
        self._is_gone = False
        self._is_in_event = False
        self._is_slow = False
        self._sending_since: float | None = None
        self._sent_at = clock.now()
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None

    @property
    def keeps_run(self) -> bool:
        """Whether the run is stopped after this reader and all others like it have left."""
        return self.view.stops_run and not self._is_over

    async def run(self, receive: Receive, cut: Callable[[], object] | None = None) -> None:
        """Send it until its end; ``cut`` closes the connection of a client that does not read."""
        self._task = asyncio.current_task()
        assert self._task is not None, "a request has a task"
        self._feed = self._streams.join(self.view, self)
        watcher = asyncio.create_task(self._watch(receive))
        try:
            last = await self._follow()
        except asyncio.CancelledError:
            if not self._is_slow or self._task.uncancel() > 0:
                raise
            last = self._too_slow()
        except OSError:  # some servers report a lost client like this
            self._is_gone, last = True, b""
        finally:
            watcher.cancel()
            self._streams.leave(self.view, self)
        is_cut = cut is not None and self._is_slow and self._is_in_event
        if not self._is_gone and not is_cut:
            is_cut = not await self._send_last(last) and cut is not None
        if is_cut:
            assert cut is not None, "it was checked"
            cut()
            while (await receive())["type"] != "http.disconnect":
                pass  # otherwise the server would complain that the response is not complete

    def wake(self) -> None:
        """Read the log again."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def check(self, now: float) -> None:
        """Drop a client that does not read."""
        since, limit = self._sending_since, self._streams.limits.slow_seconds
        if since is not None and now - since > limit:
            self.drop()

    def drop(self) -> None:
        """Drop the client while something is sent to it."""
        if not self._is_slow and self._sending_since is not None:
            self._is_slow = True
            assert self._task is not None, "it is sending"
            self._task.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self.wake()

    async def _follow(self) -> bytes:
        """Send what there is and what comes. Return what the stream ends with."""
        while (last := await self._catch_up()) is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        return last

    async def _catch_up(self) -> bytes | None:
        """Send all events so far. Return the end of the stream, or None if there will be more."""
        store = self._streams.store
        while not self._is_gone:
            self._has_news = False
            assert self._feed is not None, "it follows something"
            try:
                piece = await self.view.read(store, self._feed, self._after)
            except StoppableError:
                return self._marker("dropped", "the store does not answer: resume later")
            except Behind:
                return self._too_slow()
            if piece.is_last and len(piece.chunk) <= SEND_BYTES:
                self._is_over = True
                return piece.chunk
            if piece.chunk:
                await self._send(piece.chunk)
            self._after = piece.after  # also if nothing was to be shown
            if piece.is_last:
                self._is_over = True
                return b""
            if piece.is_all or not piece.chunk:
                last = await self._idle()
                if last is not None or not self._has_news:
                    return last
        return b""

    async def _idle(self) -> bytes | None:
        """Send a heartbeat or drop the reader if it is time. Return the end of the stream, if it ends now."""
        if self.view.is_replay:
            return b""
        if self._streams.is_draining:
            return self._marker("shutdown", "the server shuts down: resume elsewhere")
        if clock.now() - self._sent_at >= self._streams.limits.heartbeat:
            await self._send(_HEARTBEAT)
        return None

    async def _send(self, chunk: bytes) -> None:
        self._sending_since = self._sent_at = clock.now()
        if len(chunk) <= SEND_BYTES:
            await self._send_part(chunk)
        else:
            await self._send_in_parts(chunk)
        self._sending_since = None

    async def _send_in_parts(self, chunk: bytes) -> None:
        """Send what is large: a server copies what it is given, and keeps it until the client has read it."""
        begin = 0
        with self._streams.large.held(self, chunk):
            while begin < len(chunk):
                # If possible up to the end of an event: after that, there can be one about the stream itself.
                end = chunk.rfind(_END, begin, begin + SEND_BYTES)
                end = begin + SEND_BYTES if end < 0 else end + len(_END)
                await self._send_part(chunk[begin:end])
                self._sending_since = clock.now()
                self._is_in_event = not chunk.endswith(_END, begin, end)
                begin = end

    async def _send_part(self, chunk: bytes) -> None:
        await self._send_message({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _send_last(self, last: bytes) -> bool:
        # It is sent once the connection is writable; for a client that still does not read, the connection is closed.
        try:
            async with asyncio.timeout(self._streams.limits.slow_seconds):
                await self._send_message({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            return False
        return True

    def _too_slow(self) -> bytes:
        if self._is_in_event:
            return b""  # a client ignores an event that is not complete
        return self._marker("dropped", "you read too slowly: resume after the last event")

    def _marker(self, name: str, text: str) -> bytes:
        """Return an event about the stream itself; without an id, so that a client resumes where it was."""
        return message(name, {"after": self._after, "message": text})

"""All open streams of a server: the response to each client, their common timer, and the memory of slow clients.

``EventStreams`` opens such streams in the format of an app.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stoppable._core import clock
from stoppable._core.values import Reason, ReasonKind
from stoppable.errors import RunNotFound, StoppableError
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.limits import CUT, ServerLimits
from stoppable.server.responses import Problem
from stoppable.server.sse.feeds import (
    READ,
    SEND_BYTES,
    Behind,
    Feed,
    Follower,
    LogView,
    Piece,
    Pieces,
    RunView,
    TreeView,
    View,
    message,
    tree_name,
)
from stoppable.stores.base import READ_BYTES, Store
from stoppable.supervisor import Supervisor


class LargeChunks:
    """The large chunks that are being sent, which readers at the same place share.

    When they take more memory than the server or one owner may use, the reader that has been at it for longest is
    dropped: the others may still read.
    """

    def __init__(self, limit: int, owner_limit: int) -> None:
        self._owner_limit = owner_limit
        self._all = _ChunkCount(limit)
        self._by_owner: dict[str, _ChunkCount] = {}

    @contextlib.contextmanager
    def sending(self, reader: Follower, chunk: bytes) -> Iterator[None]:
        """Count a chunk while it is sent to a reader, and drop other readers if it is too much."""
        counts = [self._all]
        if reader.owner is not None:
            counts.append(self._by_owner.setdefault(reader.owner, _ChunkCount(self._owner_limit)))
        for count in counts:
            count.add(reader, chunk)
        try:
            for count in counts:
                while (slowest := count.reader_to_drop(reader)) is not None:
                    self._remove(slowest)
                    slowest.drop()
            yield
        finally:
            self._remove(reader)

    def _remove(self, reader: Follower) -> None:
        self._all.remove(reader)
        if reader.owner is not None and reader.owner in self._by_owner:
            own = self._by_owner[reader.owner]
            own.remove(reader)
            if not own.chunks:
                del self._by_owner[reader.owner]

    def __len__(self) -> int:
        return self._all.size


class _ChunkCount:
    def __init__(self, limit: int) -> None:
        self.chunks: dict[Follower, bytes] = {}
        self.size = 0
        self._limit = limit
        self._uses: Counter[int] = Counter()

    def add(self, reader: Follower, chunk: bytes) -> None:
        self.chunks[reader] = chunk
        if not self._uses[id(chunk)]:
            self.size += len(chunk)
        self._uses[id(chunk)] += 1

    def remove(self, reader: Follower) -> None:
        chunk = self.chunks.pop(reader, None)
        if chunk is not None:
            self._uses[id(chunk)] -= 1
            if not self._uses[id(chunk)]:
                del self._uses[id(chunk)]
                self.size -= len(chunk)

    def reader_to_drop(self, spared: Follower) -> Follower | None:
        """Return the reader to drop, if any: not the one that has just begun."""
        if self.size <= self._limit:
            return None
        return next((reader for reader in self.chunks if reader is not spared), None)


_logger = logging.getLogger("stoppable.server")

_CHECK_SECONDS = 5.0  # even without a notification: those may be lost
_CHECKED_AT_ONCE = 20


class Streams:
    """Every open stream of a server."""

    def __init__(self, supervisor: Supervisor, limits: ServerLimits) -> None:
        self.supervisor = supervisor
        self.limits = limits
        self.is_draining: bool = False
        self._count = 0
        self._owners: Counter[str] = Counter()
        self._feeds: dict[str, Feed] = {}
        self._ticker: asyncio.Handle | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._pieces = Pieces()
        self.large: LargeChunks = LargeChunks(limits.stream_bytes, limits.owner_stream_bytes)

    @property
    def store(self) -> Store:
        """The store of the supervisor."""
        return self.supervisor.store

    def __len__(self) -> int:
        return self._count

    def check_room(self, owner: str | None) -> None:
        """Refuse a stream if too many are open, or too many of one owner."""
        if self._count >= self.limits.streams:
            raise Problem(429, "too_many_streams", f"{self._count} streams are open: try later", {"Retry-After": "5"})
        share = max(1, min(self.limits.owner_streams, self.limits.streams // 2))
        if owner is not None and self._owners[owner] >= share:
            message = f"owner {owner!r} has {share} open streams, which is the limit here: close some, or try later"
            raise Problem(429, "too_many_streams", message, {"Retry-After": "5"})

    def join(self, view: View, reader: Follower) -> Feed:
        """Add a reader to the feed of its view, which the first one opens."""
        feed = self._feeds.get(view.name)
        if feed is None:
            feed = self._feeds[view.name] = view.make_feed(self.store)
            feed.pieces = self._pieces
        feed.readers.append(reader)
        self._count += 1
        if reader.owner is not None:
            self._owners[reader.owner] += 1
        if self._ticker is None:
            self._tick_later()
        return feed

    def leave(self, view: View, reader: Follower) -> None:
        """Remove a reader; the last one of a run with ``on_disconnect="stop"`` stops it, after the grace."""
        feed = self._feeds[view.name]
        feed.readers.remove(reader)
        self._count -= 1
        if reader.owner is not None:
            self._owners[reader.owner] -= 1
            if not self._owners[reader.owner]:
                del self._owners[reader.owner]  # owners come and go
        if not feed.readers:
            feed.close()
            del self._feeds[view.name]
        if reader.keeps_run and not self._is_followed(view.run_id):
            task = asyncio.create_task(self._stop_unless_back(view.run_id))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def _stop_unless_back(self, run_id: str) -> None:
        await asyncio.sleep(self.limits.disconnect_grace)
        if self._is_followed(run_id):
            return
        reason = Reason.of("its last reader went away", kind=ReasonKind.DISCONNECT)
        try:
            await self.supervisor.stop(run_id, reason=reason)
        except StoppableError as error:
            _logger.warning("run %s has lost its last reader, but could not be stopped: %s", run_id, error)

    def _is_followed(self, run_id: str) -> bool:
        feeds = [feed for name in (run_id, tree_name(run_id)) if (feed := self._feeds.get(name)) is not None]
        return self.is_draining or any(reader.keeps_run for feed in feeds for reader in feed.readers)

    def drain(self) -> None:
        """End every stream with a ``shutdown`` event."""
        self.is_draining = True
        for reader in self._all():
            reader.wake()

    def close(self) -> None:
        """Cancel the timer, and the stops that wait for a reader to come back."""
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for task in self._stopping:
            task.cancel()

    def _all(self) -> list[Follower]:
        return [reader for feed in self._feeds.values() for reader in feed.readers]

    # One timer for all streams: a timer for each would cost more than the heartbeats.

    def _tick_later(self) -> None:
        seconds = min(_CHECK_SECONDS, self.limits.heartbeat, self.limits.slow_seconds / 2)
        self._ticker = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._check_readers(self._all(), clock.now())

    def _check_readers(self, readers: list[Follower], now: float) -> None:
        # A few at a time, so that thousands of streams delay no request, and idle ones need little memory.
        for reader in readers[-_CHECKED_AT_ONCE:]:
            reader.check(now)
            reader.wake()
        del readers[-_CHECKED_AT_ONCE:]
        if readers:
            self._ticker = asyncio.get_running_loop().call_soon(self._check_readers, readers, now)
        elif self._count:
            self._tick_later()
        else:
            self._ticker = None


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
        """Read the log again: there may be new events."""
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
        with self._streams.large.sending(self, chunk):
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
        return self.view.marker(name, self._after, text)


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


class Message(NamedTuple):
    """One message of a stream: the name of its event, and data that has a JSON form."""

    event: str
    data: Any


class EventEncoder(ABC):
    """Translates the events of a run into messages for the clients of your app.

    It is called on the app's event loop and must not block. Each stream has its own encoder, so an encoder may keep
    state between two events.
    """

    def first(self, record: RunRecord) -> Message | None:  # noqa: ARG002 - for those who override it
        """Return the first message of a stream, including one that resumes; None sends nothing."""
        return None

    @abstractmethod
    def event(self, event: Event) -> Message | None:
        """Return the message for an event; None skips it."""

    @abstractmethod
    def last(self, record: RunRecord) -> Message | None:
        """Return the last message of a stream; the record has the outcome of the run."""


class EventStreams:
    """Opens event streams in the format of your app.

    Each stream sends past events, then live ones, and ends when the run has ended. Messages have an ``id`` from which a
    client resumes, comments keep idle streams open, and ``limits`` bounds the number of streams and how slowly they may
    be read. A stream that ends early says why in a ``dropped`` or ``shutdown`` event. Closing a stream stops the run
    only if it was started with ``on_disconnect="stop"``.
    """

    def __init__(self, supervisor: Supervisor, limits: ServerLimits | None = None) -> None:
        self._streams = Streams(supervisor, limits or ServerLimits())

    def __len__(self) -> int:
        return len(self._streams)

    async def follow(
        self, run_id: str, encoder: EventEncoder, *, after: int = 0, tree: bool = False, owner: str | None = None
    ) -> Response:
        """Return a response that follows a run, or with ``tree`` the run and all its descendants.

        ``after`` is the last ``id`` that the client has received, from its Last-Event-ID; a client that has seen the
        end gets 204. Raises RunNotFound if the run is unknown or belongs to another owner than ``owner``.
        """
        record = await self._streams.supervisor.get(run_id)
        if owner is not None and record.owner != owner:
            raise RunNotFound(run_id)
        inner = TreeView(record, owner) if tree else RunView(record)
        return await resume_stream(self._streams, _EncodedView(inner, encoder, encoder.first(record)), after, owner)

    def drain(self) -> None:
        """End every stream because this process shuts down, and ask clients to resume elsewhere."""
        self._streams.drain()

    def close(self) -> None:
        """Release all resources; after this no stream may be opened."""
        self._streams.close()


class TranslatedView(LogView):
    """A view whose events are sent in another format than ours."""

    __slots__ = ("_inner", "_opening")

    def __init__(self, inner: LogView, opening: bytes) -> None:
        self.name: str = inner.name
        self.run_id: str = inner.run_id
        self.is_replay: bool = inner.is_replay
        self.stops_run: bool = inner.stops_run
        self._inner = inner
        self._opening = opening

    @abstractmethod
    def translate(self, event: Event, place: int) -> bytes:
        """Return what is sent for an event, which may be nothing."""

    @abstractmethod
    async def translate_end(self, store: Store, place: int) -> bytes:
        """Return what is sent last, once the run has ended."""

    def make_feed(self, store: Store) -> Feed:
        """Return the feed that wakes all readers of the same events."""
        return self._inner.make_feed(store)

    async def events(self, store: Store, after: int, limit: int) -> Sequence[tuple[int, Event]]:
        """Return the events after a number, each with its number."""
        return await self._inner.events(store, after, limit)

    async def position(self, store: Store, after: int) -> tuple[int, bool]:
        """Return the newest number, and whether a client that has ``after`` has seen everything."""
        return await self._inner.position(store, after)

    async def read(self, store: Store, feed: Feed, after: int) -> Piece:  # noqa: ARG002 - a feed knows our format only
        """Return the translated events; events that are skipped are left out."""
        opening, self._opening = self._opening, b""
        while events := await self.events(store, after, READ):
            piece = await self._piece(store, events, opening)
            if piece.chunk or piece.is_last:
                return piece
            after = piece.after
        return Piece(opening, after)

    async def _piece(self, store: Store, events: Sequence[tuple[int, Event]], opening: bytes) -> Piece:
        chunk, after = bytearray(opening), 0
        for after, event in events:
            is_last = event.type is EventType.DONE and event.run_id == self.run_id
            chunk += await self.translate_end(store, after) if is_last else self.translate(event, after)
            if is_last:
                return Piece(bytes(chunk), after, is_last=True)
            if len(chunk) >= READ_BYTES:  # what was read is not kept, so as much as one read finds
                break
        return Piece(bytes(chunk), after)


class _EncodedView(TranslatedView):
    """A view whose events are translated by an encoder."""

    __slots__ = ("_encoder",)

    def __init__(self, inner: LogView, encoder: EventEncoder, first: Message | None) -> None:
        super().__init__(inner, b"" if first is None else message(*first))
        self._encoder = encoder

    def translate(self, event: Event, place: int) -> bytes:
        """Return the message of the encoder."""
        return self._encoded(self._encoder.event(event), place)

    async def translate_end(self, store: Store, place: int) -> bytes:
        """Return the last message of the encoder."""
        return self._encoded(self._encoder.last(await store.get(self.run_id)), place)

    @staticmethod
    def _encoded(translated: Message | None, place: int) -> bytes:
        return b"" if translated is None else message(*translated, place)

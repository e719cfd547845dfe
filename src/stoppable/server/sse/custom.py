"""Event streams in the format of your app, with the heartbeat and limits of stoppable's own streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.responses import Response

from stoppable.errors import RunNotFound
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.limits import ServerLimits
from stoppable.server.sse.feed import Feed, Piece, message
from stoppable.server.sse.response import resume_stream
from stoppable.server.sse.streams import Streams
from stoppable.server.sse.views import READ, LogView, RunView, TreeView
from stoppable.stores.base import READ_BYTES, Store
from stoppable.supervisor import Supervisor


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
        return await resume_stream(self._streams, _Encoded(inner, encoder, encoder.first(record)), after, owner)

    def drain(self) -> None:
        """End every stream because this process shuts down, and ask clients to resume elsewhere."""
        self._streams.drain()

    def close(self) -> None:
        """Release all resources; after this no stream may be opened."""
        self._streams.close()


class _Encoded(LogView):
    """A view whose events are translated by an encoder."""

    __slots__ = ("_encoder", "_first", "_inner")

    def __init__(self, inner: LogView, encoder: EventEncoder, first: Message | None) -> None:
        self.name, self.run_id = inner.name, inner.run_id
        self.is_replay, self.stops_run = inner.is_replay, inner.stops_run
        self._inner = inner
        self._encoder = encoder
        self._first = first

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
        """Return the encoded events; events that the encoder skips are left out."""
        opening = b"" if self._first is None else message(*self._first)
        self._first = None
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
            told = self._encoder.last(await store.get(self.run_id)) if is_last else self._encoder.event(event)
            if told is not None:
                chunk += message(*told, after)
            if is_last:
                return Piece(bytes(chunk), after, is_last=True)
            if len(chunk) >= READ_BYTES:  # what was read is not kept, so as much as one read finds
                break
        return Piece(bytes(chunk), after)

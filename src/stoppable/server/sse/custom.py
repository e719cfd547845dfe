"""Event streams of runs in the format of your own app, with the heartbeat and the limits of ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.responses import Response

from stoppable.errors import RunNotFound
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.limits import ServerLimits
from stoppable.server.sse.feed import Feed, message
from stoppable.server.sse.response import resume_stream
from stoppable.server.sse.streams import Streams
from stoppable.server.sse.views import READ, SEND_BYTES, LogView, Piece, RunView, TreeView
from stoppable.stores.base import Store
from stoppable.supervisor import Supervisor


class Message(NamedTuple):
    """One message of a stream: the name of its event, and data that has a JSON form."""

    event: str
    data: Any


class EventEncoder(ABC):
    """Translates the events of a run into messages for the clients of your app.

    It is called on the event loop of the app and must not block. One encoder serves one stream, so it may keep what it
    needs to know between two events.
    """

    def first(self, record: RunRecord) -> Message | None:  # noqa: ARG002 - for those who override it
        """Return the first message of a stream, also of one that resumes; None sends nothing."""
        return None

    @abstractmethod
    def event(self, event: Event) -> Message | None:
        """Return the message for an event; None skips it."""

    @abstractmethod
    def last(self, record: RunRecord) -> Message | None:
        """Return the last message of a stream; the record has the outcome of the run."""


class EventStreams:
    """Opens event streams in the format of your app.

    Each stream replays what happened, then follows, and ends when the run has ended. Messages carry an ``id`` with
    which a client resumes, a comment keeps idle streams open, and ``limits`` bounds how many there are and how slowly
    they may be read. A stream that ends early says why in a ``dropped`` or ``shutdown`` event. Leaving a stream stops
    the run only if it was started with ``on_disconnect="stop"``.
    """

    def __init__(self, supervisor: Supervisor, limits: ServerLimits | None = None) -> None:
        self._streams = Streams(supervisor, limits or ServerLimits())

    def __len__(self) -> int:
        return len(self._streams)

    async def follow(
        self, run_id: str, encoder: EventEncoder, *, after: int = 0, tree: bool = False, owner: str | None = None
    ) -> Response:
        """Return a response that follows a run, or with ``tree`` the run and all its descendants.

        ``after`` is the last ``id`` that the client has, from its Last-Event-ID; whoever has seen the end gets 204.
        Raises RunNotFound for a run that is unknown, or of another owner than a given one.
        """
        record = await self._streams.supervisor.get(run_id)
        if owner is not None and record.owner != owner:
            raise RunNotFound(run_id)
        inner = TreeView(record, owner) if tree else RunView(record)
        return await resume_stream(self._streams, _Encoded(inner, encoder, encoder.first(record)), after)

    def drain(self) -> None:
        """End every stream, and tell clients to resume elsewhere: this process shuts down."""
        self._streams.drain()

    def close(self) -> None:
        """Forget what is left; after this no stream may be opened."""
        self._streams.close()


class _Encoded(LogView):
    """What another view shows, as an encoder puts it."""

    __slots__ = ("_encoder", "_first", "_inner")

    def __init__(self, inner: LogView, encoder: EventEncoder, first: Message | None) -> None:
        self.name, self.run_id = inner.name, inner.run_id
        self.is_replay, self.stops_run = inner.is_replay, inner.stops_run
        self._inner = inner
        self._encoder = encoder
        self._first = first

    def make_feed(self, store: Store) -> Feed:
        """Return what wakes those who follow the same."""
        return self._inner.make_feed(store)

    async def events(self, store: Store, after: int, limit: int) -> Sequence[tuple[int, Event]]:
        """Return what comes after a number, each event with its own."""
        return await self._inner.events(store, after, limit)

    async def position(self, store: Store, after: int) -> tuple[int, bool]:
        """Return the newest number there is, and whether a client that has ``after`` has seen everything."""
        return await self._inner.position(store, after)

    async def read(self, store: Store, feed: Feed, after: int) -> Piece:  # noqa: ARG002 - a feed knows our format only
        """Return events as they are sent; one that shows nothing is passed over."""
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
            if len(chunk) >= SEND_BYTES:
                break
        return Piece(bytes(chunk), after)

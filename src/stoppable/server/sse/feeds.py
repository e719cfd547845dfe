"""What streams show and how they share it: views of runs and trees, woken together, each event encoded once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, Protocol

from stoppable._core import clock
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.responses import dumps, one_line
from stoppable.stores.base import ANY, READ_BYTES, Store

_PIECES_BYTES = 16_000_000
_EMPTY_SECONDS = 1.0  # how long it counts that there was nothing new: a notification may be lost


_numbers = itertools.count()


class Piece(NamedTuple):
    """The next data to send, the number that a client has then, and whether the stream ends with it.

    ``is_all`` says that there was nothing after it when it was read; later events wake the reader.
    """

    chunk: bytes
    after: int
    is_last: bool = False
    is_all: bool = False


class Pieces:
    """What was last read for the readers of all feeds; forgets what was not used for longest."""

    def __init__(self, limit: int = _PIECES_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._pieces: OrderedDict[Hashable, Piece] = OrderedDict()

    def get(self, key: Hashable) -> Piece | None:
        """Return a piece; there may be more after it by now."""
        piece = self._pieces.get(key)
        if piece is None:
            return None
        self._pieces.move_to_end(key)
        return piece._replace(is_all=False)

    def put(self, key: Hashable, piece: Piece) -> None:
        """Keep a piece for a while."""
        if key not in self._pieces:
            self._pieces[key] = piece
            self._size += len(piece.chunk)
        while self._size > self._limit:
            self._size -= len(self._pieces.popitem(last=False)[1].chunk)


class _Empty(NamedTuple):
    """That there was nothing to send: at what time, and before which wake-up."""

    piece: Piece
    at: float
    wakes: int


class Follower(Protocol):
    """An open stream, as its feed sees it."""

    @property
    def owner(self) -> str | None:
        """The owner whose runs the reader may see; None for all."""
        ...

    @property
    def keeps_run(self) -> bool:
        """Whether the run is stopped after this reader and all others like it have left."""
        ...

    def wake(self) -> None:
        """Read the log again: there may be new events."""
        ...

    def check(self, now: float) -> None:
        """Drop a client that does not read."""
        ...

    def drop(self) -> None:
        """Drop the client, which may resume."""
        ...


class Feed:
    """Wakes the readers of a run, or of all runs, when there are new events.

    Readers at the same place share what is read for one of them: the store is asked once, and each event is encoded
    once, however many readers there are.
    """

    __slots__ = (
        "_empty",
        "_is_woken",
        "_loop",
        "_number",
        "_pause",
        "_reading",
        "_subscription",
        "_wakes",
        "pieces",
        "readers",
    )

    def __init__(self, store: Store, name: str, pause: float = 0.0) -> None:
        """Wake readers on changes under a name, at most once in ``pause`` seconds."""
        self.readers: list[Follower] = []
        self._loop = asyncio.get_running_loop()
        self._is_woken = False
        self._pause = pause
        self.pieces: Pieces = Pieces()
        """Streams lets all feeds share one."""
        self._number = next(_numbers)
        self._empty: dict[Hashable, _Empty] = {}
        self._reading: dict[Hashable, asyncio.Future[None]] = {}
        self._wakes = 0
        self._subscription = store.watch(name, self._wake)

    def close(self) -> None:
        """End the subscription of the store's changes."""
        self._subscription.close()

    async def piece(self, kind: Hashable, after: int, read: Callable[[], Awaitable[Sequence[Piece]]]) -> Piece:
        """Return the data after a number for readers of one kind: what was read before, or what ``read`` returns.

        ``read`` returns one piece after the other, or one that is empty.
        """
        key = kind, after
        while (cached_piece := self._find_cached(key)) is None:
            reading = self._reading.get(key)
            if reading is not None:
                await asyncio.wait([reading])  # and look again: it may have failed, or found nothing
                continue
            reading = self._reading[key] = self._loop.create_future()
            at, wakes = clock.now(), self._wakes
            try:
                pieces = await read()
            finally:
                del self._reading[key]
                reading.set_result(None)
            if not pieces[0].chunk:
                self._empty[key] = _Empty(pieces[0], at, wakes)
                return pieces[0]
            for piece in pieces:
                self.pieces.put((self._number, kind, after), piece)
                after = piece.after
            return pieces[0]
        return cached_piece

    def _find_cached(self, key: tuple[Hashable, int]) -> Piece | None:
        empty = self._empty.get(key)
        if empty is not None:
            if empty.wakes == self._wakes and clock.now() - empty.at < _EMPTY_SECONDS:
                return empty.piece
            del self._empty[key]
        return self.pieces.get((self._number, *key))

    def _wake(self) -> None:
        self._wakes += 1
        if not self._is_woken:  # once for many events
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._on_woken)

    def _on_woken(self) -> None:
        if self._pause:
            self._loop.call_later(self._pause, self.wake_all)
        else:
            self.wake_all()

    def wake_all(self) -> None:
        """Let every reader read again, because of new events."""
        self._is_woken = False
        self._empty.clear()
        for reader in self.readers:
            reader.wake()


def encode(event: Event, place: int) -> bytes:
    """Return an encoded event, with the number from which a client resumes."""
    kind = event.type._value_  # before 3.12, .value is slower than a call
    return message(
        kind, {"runId": event.run_id, "seq": event.seq, "at": event.at, "type": kind, "data": event.data}, place
    )


def message(kind: str, data: object, place: int | None = None) -> bytes:
    """Return an event of a stream; without a place, it does not affect where a client resumes."""
    text = dumps(data)
    if not text.isascii():
        text = one_line(text)
    # JSON has no line breaks, so nothing that an agent emits can end the event early.
    if place is None:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), text)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (place, kind.encode(), text)


READ = 200  # events at a time
SEND_BYTES = 8_192  # for a client that does not read, about twice as much is buffered
_TREE_PAUSE = 0.05  # seconds: the reader of a tree is woken by every run of the store


class Behind(Exception):
    """Raised if a reader has to start again, because its next changes are no longer kept."""


class View(ABC):
    """What one reader follows: the events that it gets, and how they are read and encoded."""

    __slots__ = ("is_replay", "name", "run_id", "stops_run")

    name: str
    """The name of the feed that readers of the same events share."""
    run_id: str
    is_replay: bool
    """Whether no more events will come."""
    stops_run: bool
    """Whether the run is stopped after all such readers have left."""

    @abstractmethod
    def make_feed(self, store: Store) -> Feed:
        """Return the feed that wakes the readers of this view."""

    @abstractmethod
    async def read(self, store: Store, feed: Feed, after: int) -> Piece:
        """Return the data after a number, which may be empty."""

    def marker(self, name: str, after: int, text: str) -> bytes:
        """Return an event about the stream itself; without an id, so that a client resumes where it was."""
        return message(name, {"after": after, "message": text})


class LogView(View):
    """The events of one or more logs."""

    __slots__ = ()

    @abstractmethod
    async def events(self, store: Store, after: int, limit: int) -> Sequence[tuple[int, Event]]:
        """Return the events after a number, each with its number."""

    @abstractmethod
    async def position(self, store: Store, after: int) -> tuple[int, bool]:
        """Return the newest number, and whether a client that has ``after`` has seen everything."""


class RunView(LogView):
    """The log of one run."""

    __slots__ = ()

    def __init__(self, record: RunRecord) -> None:
        self.name: str = record.id
        self.run_id: str = record.id
        self.is_replay: bool = record.over
        self.stops_run: bool = record.on_disconnect == "stop"

    def make_feed(self, store: Store) -> Feed:
        """Return the feed of this run."""
        return Feed(store, self.run_id)

    async def read(self, store: Store, feed: Feed, after: int) -> Piece:
        """Return the encoded events of the log."""
        # For a run that has ended, this includes late events.
        last = None if self.is_replay else self.run_id

        async def pieces() -> Sequence[Piece]:
            events = await self.events(store, after, READ)
            encoded = _pieces(events, after, last)
            size = sum(len(piece.chunk) for piece in encoded)
            is_all = len(events) < READ and size < READ_BYTES // 8  # the store may have a longer form
            return [*encoded[:-1], encoded[-1]._replace(is_all=is_all)]

        return await feed.piece(last, after, pieces)

    async def events(self, store: Store, after: int, limit: int) -> Sequence[tuple[int, Event]]:
        """Return the events after a number, each with its number."""
        return [(event.seq, event) for event in await store.read(self.run_id, after, limit)]

    async def position(self, store: Store, after: int) -> tuple[int, bool]:
        """Return the newest number, and whether a client that has ``after`` has seen everything."""
        newest = (await store.get(self.run_id)).last_event
        return newest, after >= newest


class TreeView(LogView):
    """The logs of a run and all its descendants, in store order; numbers are places in the store."""

    __slots__ = ("_is_seen", "_owner")

    def __init__(self, record: RunRecord, owner: str | None = None) -> None:
        """Show the whole tree, or only the runs of one owner."""
        self._owner = owner
        self._is_seen: dict[str, bool] = {}
        self.run_id: str = record.id
        self.name: str = tree_name(record.id)
        self.is_replay: bool = record.over
        self.stops_run: bool = record.on_disconnect == "stop"

    def make_feed(self, store: Store) -> Feed:
        """Return the feed of this tree."""
        return Feed(store, ANY, _TREE_PAUSE)

    async def read(self, store: Store, feed: Feed, after: int) -> Piece:
        """Return the encoded events in store order."""

        async def pieces() -> Sequence[Piece]:
            return _pieces(await self.events(store, after, READ), after, self.run_id)

        kind: Hashable = ("owner", self._owner)
        return await feed.piece(kind, after, pieces)

    async def events(self, store: Store, after: int, limit: int) -> Sequence[tuple[int, Event]]:
        """Return the events after a place, each with its place."""
        while True:
            tail = await store.tail(after, limit, below=self.run_id)
            events = [pair for pair in tail.events if await self._sees(store, pair[1].run_id)]
            if events or not tail.events:
                return events
            after = tail.events[-1][0]

    async def position(self, store: Store, after: int) -> tuple[int, bool]:
        """Return the newest place, and whether a client that has ``after`` has seen everything."""
        tail = await store.tail(after, 1, below=self.run_id)
        return tail.place, not tail.events

    async def _sees(self, store: Store, run_id: str) -> bool:
        if self._owner is None:
            return True
        if run_id not in self._is_seen:
            self._is_seen[run_id] = (await store.get(run_id)).owner == self._owner
        return self._is_seen[run_id]


def tree_name(run_id: str) -> str:
    """Return the feed name of a tree, which is not a valid run id."""
    return f"{run_id}/tree"


def _pieces(events: Iterable[tuple[int, Event]], after: int, run_id: str | None) -> list[Piece]:
    """Return encoded events in pieces, up to the end of a run if one is given; a large event is a piece of its own."""
    pieces: list[Piece] = []
    chunks: list[bytes] = []
    size = 0
    for place, event in events:
        encoded = encode(event, place)
        if chunks and size + len(encoded) > SEND_BYTES:
            pieces.append(Piece(b"".join(chunks), after))
            chunks, size = [], 0
        chunks.append(encoded)
        size += len(encoded)
        after = place
        if event.type is EventType.DONE and event.run_id == run_id:
            return [*pieces, Piece(b"".join(chunks), after, is_last=True)]
    return [*pieces, Piece(b"".join(chunks), after)] if chunks or not pieces else pieces

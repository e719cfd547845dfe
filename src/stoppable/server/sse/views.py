"""What a stream shows: a run, a run with all its descendants, or the changes of all runs (run_changes.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from stoppable.records import Event, EventType, RunRecord
from stoppable.server.sse.feed import Feed, Piece, encode
from stoppable.stores.base import READ_BYTES
from stoppable.stores.listeners import ANY

if TYPE_CHECKING:
    from stoppable.stores.base import Store

READ = 200  # events at a time
SEND_BYTES = 8_192  # for a client that does not read, about twice as much is buffered
_TREE_PAUSE = 0.05  # seconds: the reader of a tree is woken by every run of the store


class Behind(Exception):
    """Raised if a reader has to start again, because its next changes are no longer kept."""


class View(ABC):
    """What one reader follows."""

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
            found = _pieces(events, after, last)
            size = sum(len(piece.chunk) for piece in found)
            is_all = len(events) < READ and size < READ_BYTES // 8  # the store may have a longer form
            return [*found[:-1], found[-1]._replace(is_all=is_all)]

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
    found: list[Piece] = []
    chunks: list[bytes] = []
    size = 0
    for place, event in events:
        encoded = encode(event, place)
        if chunks and size + len(encoded) > SEND_BYTES:
            found.append(Piece(b"".join(chunks), after))
            chunks, size = [], 0
        chunks.append(encoded)
        size += len(encoded)
        after = place
        if event.type is EventType.DONE and event.run_id == run_id:
            return [*found, Piece(b"".join(chunks), after, is_last=True)]
    return [*found, Piece(b"".join(chunks), after)] if chunks or not found else found

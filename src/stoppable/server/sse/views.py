"""What a stream shows: a run, a run with all its descendants, or the changes of all runs (run_changes.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stoppable.records import Event, EventType, RunRecord
from stoppable.server.sse.feed import Feed
from stoppable.stores.base import READ_BYTES
from stoppable.stores.listeners import ANY

if TYPE_CHECKING:
    from stoppable.stores.base import Store

READ = 200  # events at a time
SEND_BYTES = 262_144  # an event may have a megabyte, so not too many at once
_TREE_PAUSE = 0.05  # seconds: the reader of a tree is woken by every run of the store


class Piece(NamedTuple):
    """The next data to send, the number that a client has then, and whether the stream ends with it.

    ``is_all`` says that there was nothing after it when it was read; later events wake the reader.
    """

    chunk: bytes
    after: int
    is_last: bool = False
    is_all: bool = False


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
        events = await self.events(store, after, READ)
        piece = _joined(events, feed, after, last)
        is_all = len(events) < READ and len(piece.chunk) < READ_BYTES // 8  # the store may have a longer form
        return Piece(piece.chunk, piece.after, piece.is_last, is_all)

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
        return _joined(await self.events(store, after, READ), feed, after, self.run_id)

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


def _joined(events: Iterable[tuple[int, Event]], feed: Feed, after: int, run_id: str | None) -> Piece:
    """Return encoded events, as many as fit into one piece, up to the end of a run if one is given."""
    chunks: list[bytes] = []
    size = 0
    for place, event in events:
        chunks.append(feed.encode(event, place))
        size += len(chunks[-1])
        after = place
        if event.type is EventType.DONE and event.run_id == run_id:
            return Piece(b"".join(chunks), after, is_last=True)
        if size >= SEND_BYTES:
            break
    return Piece(b"".join(chunks), after)

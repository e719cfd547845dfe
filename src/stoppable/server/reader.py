"""One client that follows a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoppable._core import clock
from stoppable.errors import StoppableError
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.encoding import dumps

if TYPE_CHECKING:
    from stoppable.server.streams import Feed, Streams

_READ = 200  # events at a time
_SEND_BYTES = 262_144  # an event may have a megabyte: not many of them in one piece
_HEARTBEAT = b":\n\n"


class Reader(ABC):
    """Sends what a run's log has, then what comes, until ``done``.

    It reads from the store what it sends, so a slow client holds up nobody and costs no memory; one that takes nothing
    for long is dropped with a ``dropped`` event and may resume after the last event that it has.
    """

    __slots__ = (
        "_after",
        "_feed",
        "_has_news",
        "_is_gone",
        "_is_over",
        "_is_replay",
        "_is_slow",
        "_sending_since",
        "_sent_at",
        "_stops_run",
        "_streams",
        "run_id",
    )

    def __init__(self, streams: Streams, record: RunRecord, after: int) -> None:
        self.run_id = record.id
        self._stops_run = record.on_disconnect == "stop"
        self._is_replay = self._is_over = record.over
        self._after = min(after, record.last_event)  # nobody has seen what has not happened
        self._streams = streams
        self._feed: Feed | None = None
        self._has_news = False
        self._is_gone = False
        self._is_slow = False
        self._sending_since: float | None = None
        self._sent_at = clock.now()

    @property
    def keeps_run(self) -> bool:
        """Whether the run is stopped once it, and all others like it, have left."""
        return self._stops_run and not self._is_over

    @abstractmethod
    async def _write(self, chunk: bytes) -> None:
        """Send a piece, once there is room for it."""

    @abstractmethod
    def wake(self) -> None:
        """Look at the log again."""

    @abstractmethod
    def _give_up(self) -> None:
        """Cancel what is being sent."""

    def check(self, now: float) -> None:
        """Give a client up that takes nothing."""
        since, limit = self._sending_since, self._streams.limits.slow_seconds
        if since is not None and now - since > limit and not self._is_slow:
            self._is_slow = True
            self._give_up()

    def _join(self) -> None:
        self._feed = self._streams.join(self)

    def _leave(self) -> None:
        if self._feed is not None:
            self._feed = None
            self._streams.leave(self)

    async def _catch_up(self) -> bytes | None:
        """Send what there is. Return what the stream ends with, or None if there will be more."""
        store = self._streams.supervisor.store
        while not self._is_gone:
            self._has_news = False
            try:
                events = await store.read(self.run_id, self._after, _READ)
            except StoppableError:
                return self._marker("dropped", "the store does not answer: resume later")
            if events:
                chunk, last = self._joined(events)
                if last.type is EventType.DONE:
                    self._is_over = True
                    return chunk
                await self._send(chunk)
                self._after = last.seq
            elif self._is_replay:
                return b""
            elif self._streams.is_draining:
                return self._marker("shutdown", "the server shuts down: resume elsewhere")
            else:
                if clock.now() - self._sent_at >= self._streams.limits.heartbeat:
                    await self._send(_HEARTBEAT)
                if not self._has_news:
                    return None
        return b""

    async def _send(self, chunk: bytes) -> None:
        self._sending_since = self._sent_at = clock.now()
        await self._write(chunk)
        self._sending_since = None

    def _joined(self, events: Sequence[Event]) -> tuple[bytes, Event]:
        """Return events as they are sent, as many as fit into one piece, up to the end, and the last of them."""
        assert self._feed is not None, "it follows a run"
        chunks, size, last = [], 0, events[0]
        for last in events:
            chunks.append(self._feed.encode(last))
            size += len(chunks[-1])
            if size >= _SEND_BYTES or last.type is EventType.DONE:
                break
        return b"".join(chunks), last

    def _too_slow(self) -> bytes:
        return self._marker("dropped", "you read too slowly: resume after the last event")

    def _marker(self, name: str, message: str) -> bytes:
        """Return an event about the stream itself; without an id, so that a client resumes where it was."""
        return b"event: %b\ndata: %b\n\n" % (name.encode(), dumps({"after": self._after, "message": message}))

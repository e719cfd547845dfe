"""The events of runs as they happen (Server-Sent Events): a stream is a view of a run, never its owner."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from stoppable._core import clock
from stoppable._core.reason import Reason, ReasonKind
from stoppable.errors import StoppableError
from stoppable.records import Event, RunRecord
from stoppable.server.encoding import dumps, one_line
from stoppable.server.event_stream import EventStream
from stoppable.server.limits import ServerLimits
from stoppable.server.problems import Problem
from stoppable.server.reader import Reader
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.server")

_LOOK_SECONDS = 5.0  # even without news: being told is speed, the store is the truth
_LOOK_AT_ONCE = 100
_ENCODED_KEPT = 512


class Feed:
    """One run that streams follow: they are woken together, and an event is encoded once for all of them."""

    __slots__ = ("_encoded", "_is_woken", "_loop", "_subscription", "readers")

    def __init__(self, supervisor: Supervisor, run_id: str) -> None:
        self.readers: list[Reader] = []
        self._loop = asyncio.get_running_loop()
        self._is_woken = False
        self._encoded: dict[int, bytes] = {}
        self._subscription = supervisor.store.watch(run_id, self._wake)

    def close(self) -> None:
        """Listen no longer."""
        self._subscription.close()

    def encode(self, event: Event) -> bytes:
        """Return an event as it is sent."""
        if len(self.readers) == 1:
            return _encode(event)
        encoded = self._encoded.get(event.seq)
        if encoded is None:
            if len(self._encoded) >= _ENCODED_KEPT:
                self._encoded.clear()
            encoded = self._encoded[event.seq] = _encode(event)
        return encoded

    def _wake(self) -> None:
        if not self._is_woken:  # once for many events
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        self._is_woken = False
        for reader in self.readers:
            reader.wake()


def _encode(event: Event) -> bytes:
    seq, kind = event.seq, event.type._value_  # before 3.12, .value takes longer than a call
    data = dumps({"runId": event.run_id, "seq": seq, "at": event.at, "type": kind, "data": event.data})
    if not data.isascii():
        data = one_line(data)
    # JSON has no line breaks, so nothing that an agent emits can end the event early.
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (seq, kind.encode(), data)


class Streams:
    """Every open stream of a server."""

    def __init__(self, supervisor: Supervisor, limits: ServerLimits) -> None:
        self.supervisor = supervisor
        self.limits = limits
        self.is_draining = False
        self._count = 0
        self._feeds: dict[str, Feed] = {}
        self._ticker: asyncio.Handle | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return self._count

    def open(self, record: RunRecord, after: int) -> EventStream:
        """Return a response that follows a run, if there is room for one more."""
        if self._count >= self.limits.streams:
            raise Problem(429, "too_many_streams", f"{self._count} streams are open: try later", {"Retry-After": "5"})
        return EventStream(self, record, after)

    def join(self, reader: Reader) -> Feed:
        """Count a reader in."""
        feed = self._feeds.get(reader.run_id)
        if feed is None:
            feed = self._feeds[reader.run_id] = Feed(self.supervisor, reader.run_id)
        feed.readers.append(reader)
        self._count += 1
        if self._ticker is None:
            self._tick_later()
        return feed

    def leave(self, reader: Reader) -> None:
        """Count a reader out."""
        feed = self._feeds[reader.run_id]
        feed.readers.remove(reader)
        self._count -= 1
        if not feed.readers:
            feed.close()
            del self._feeds[reader.run_id]
        if reader.keeps_run and not self._is_kept(reader.run_id):
            task = asyncio.create_task(self._stop_unless_back(reader.run_id))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def _stop_unless_back(self, run_id: str) -> None:
        await asyncio.sleep(self.limits.disconnect_grace)
        if self._is_kept(run_id):
            return
        reason = Reason.of("its last reader went away", kind=ReasonKind.DISCONNECT)
        try:
            await self.supervisor.stop(run_id, reason=reason)
        except StoppableError as error:
            _logger.warning("run %s has no reader any more, but could not be stopped: %s", run_id, error)

    def _is_kept(self, run_id: str) -> bool:
        feed = self._feeds.get(run_id)
        return self.is_draining or (feed is not None and any(reader.keeps_run for reader in feed.readers))

    def drain(self) -> None:
        """Tell every stream that the server shuts down, and end it."""
        self.is_draining = True
        for reader in self._all():
            reader.wake()

    def close(self) -> None:
        """End what is left."""
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for task in self._stopping:
            task.cancel()

    def _all(self) -> list[Reader]:
        return [reader for feed in self._feeds.values() for reader in feed.readers]

    # One timer for all: a timer for each would cost more than what is sent.

    def _tick_later(self) -> None:
        seconds = min(_LOOK_SECONDS, self.limits.heartbeat, self.limits.slow_seconds / 2)
        self._ticker = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        now = clock.now()
        readers = self._all()
        for reader in readers:
            reader.check(now)
        self._look_round(readers)

    def _look_round(self, readers: list[Reader]) -> None:
        # Some at a time, so that thousands of silent streams need the memory of some.
        for reader in readers[-_LOOK_AT_ONCE:]:
            reader.wake()
        del readers[-_LOOK_AT_ONCE:]
        if readers:
            self._ticker = asyncio.get_running_loop().call_soon(self._look_round, readers)
        elif self._count:
            self._tick_later()
        else:
            self._ticker = None

"""All open streams of a server, and their common timer; closing a stream does not stop its run."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from stoppable._core import clock
from stoppable._core.reason import Reason, ReasonKind
from stoppable.errors import StoppableError
from stoppable.server.limits import ServerLimits
from stoppable.server.responses import Problem
from stoppable.server.sse.feed import Feed, Follower, Pieces
from stoppable.server.sse.large_chunks import LargeChunks
from stoppable.server.sse.views import View, tree_name
from stoppable.stores.base import Store
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.server")

_LOOK_SECONDS = 5.0  # even without a notification: those may be lost
_LOOK_AT_ONCE = 20


class Streams:
    """Every open stream of a server."""

    def __init__(self, supervisor: Supervisor, limits: ServerLimits) -> None:
        self.supervisor = supervisor
        self.store: Store = supervisor.store
        self.limits = limits
        self.is_draining: bool = False
        self._count = 0
        self._owners: Counter[str] = Counter()
        self._feeds: dict[str, Feed] = {}
        self._ticker: asyncio.Handle | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._pieces = Pieces()
        self.large: LargeChunks = LargeChunks(limits.stream_bytes, limits.owner_stream_bytes)

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
        """Add a reader."""
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
        """Remove a reader."""
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
        if reader.keeps_run and not self._is_kept(view.run_id):
            task = asyncio.create_task(self._stop_unless_back(view.run_id))
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
            _logger.warning("run %s has lost its last reader, but could not be stopped: %s", run_id, error)

    def _is_kept(self, run_id: str) -> bool:
        feeds = [feed for name in (run_id, tree_name(run_id)) if (feed := self._feeds.get(name)) is not None]
        return self.is_draining or any(reader.keeps_run for feed in feeds for reader in feed.readers)

    def drain(self) -> None:
        """End every stream with a ``shutdown`` event."""
        self.is_draining = True
        for reader in self._all():
            reader.wake()

    def close(self) -> None:
        """End the remaining streams."""
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for task in self._stopping:
            task.cancel()

    def _all(self) -> list[Follower]:
        return [reader for feed in self._feeds.values() for reader in feed.readers]

    # One timer for all streams: a timer for each would cost more than the heartbeats.

    def _tick_later(self) -> None:
        seconds = min(_LOOK_SECONDS, self.limits.heartbeat, self.limits.slow_seconds / 2)
        self._ticker = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._look_round(self._all(), clock.now())

    def _look_round(self, readers: list[Follower], now: float) -> None:
        # A few at a time, so that thousands of streams delay no request, and idle ones need little memory.
        for reader in readers[-_LOOK_AT_ONCE:]:
            reader.check(now)
            reader.wake()
        del readers[-_LOOK_AT_ONCE:]
        if readers:
            self._ticker = asyncio.get_running_loop().call_soon(self._look_round, readers, now)
        elif self._count:
            self._tick_later()
        else:
            self._ticker = None

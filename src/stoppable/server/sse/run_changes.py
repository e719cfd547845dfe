"""The live list: changes of all runs, for every open page, from one query of the store.

A page loads the runs once (``GET /runs``) and then applies what this stream sends: ``run`` is the whole summary of a
run that has changed, ``flight`` what is in flight. One ``ChangesFeed`` serves all pages of a server: it polls the store
when it is woken, compares what it reads with what it sent last (``_live``), and appends the difference to a list of
batches. A page is a number of batches that it has had (``ChangesView``).

The invariant: whenever nobody holds ``lock``, a page that has had all batches has been sent, for every run, a summary
at least as new as the event at ``place``; and each later change will reach it, in the order of the changes. So a page
may be late, by a pause or, if a notification was lost, by ``_POLL_SECONDS``, but no change is missing from it.

Why it holds:

- A store writes a record and its event in one transaction, and a poll reads events first, then the records of their
  runs. So a record is as new as its event or newer. Newer is harmless: the event that belongs to it comes with the
  next poll, which reads the same summary again, finds it equal to the one in ``_live``, and sends nothing.
- ``place`` moves on after all of it was published, and nothing is awaited between the two. A poll that fails is
  repeated from the same place.
- Two kinds of changes have no event: a run that has not begun, and a stop that is acknowledged. Their runs (pending
  ones, and those in ``_unacknowledged``) are read again in every poll.
- What is woken during a poll is not lost: ``_news`` is cleared before the poll, never after it.
- Polls and first pieces exclude one another (``lock``). A new page begins at ``end``, with everything in flight as of
  the same moment, so there is neither a gap nor an overlap between its first piece and its first batch.
- A client resumes after the last ``id`` that it has had. Within a poll, runs are in the order of their last changes,
  and only those have ids, so whoever has an id has everything before it. What is in flight has no id: it is sent as a
  whole to whoever resumes.
- Batches are bounded. A reader that is further behind is dropped (``Behind``) and resumes by its id; one that has
  missed too much, or that never was here, is told to load the list again (``reset``).

What would break it: to read records before events; to await between ``_publish`` and the new ``place``; to make a
first piece during a poll; a new kind of change that writes no event and is not read again in every poll; an ``id`` on
a message that does not stand at its place in that order.

One thing it does not promise: a batch may be older than a list that was loaded meanwhile, because a poll may read a run
just before it ends. A client may then show as live what the list called over (the command line ignores such a summary);
the end follows with the next poll.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from stoppable._core.values import Status
from stoppable.errors import RunNotFound, StoppableError
from stoppable.records import EventType, Filter, RunRecord, RunSummary
from stoppable.server.sse.feeds import Behind, Feed, Piece, View, message
from stoppable.stores.base import ANY, Store
from stoppable.stores.rules import is_answered
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.server")

_RECORD = (EventType.STATUS, EventType.DONE, EventType.LATE)
_BOUNDARY = (EventType.ENTERED, EventType.LEFT, EventType.TRUNCATED)
_LIVE = frozenset(status for status in Status if not status.terminal)

_PAUSE = 0.1  # seconds between two queries, however much happens
_POLL_SECONDS = 5.0  # even without a notification: those may be lost
_EVENTS_PER_QUERY = 5_000  # events per query
_PAGE = 1_000
_MOST_UNACKNOWLEDGED = 200  # runs that are read again because their stop was not acknowledged
_REPLAYED = 200_000  # events: a page that missed more reloads the list
_REPLAYED_RUNS = 2_000
_REPLAYED_BYTES = 1_000_000
_PIECE_BYTES = 262_144  # sent at once: a slow page must not buffer much
_BATCHES = 1_000
_BATCH_BYTES = 16_000_000

InFlight = tuple[str, ...] | None


class Batch:
    """A part of the result of one query, encoded once; ``place`` is that of its last run."""

    __slots__ = ("_encoded", "_in_flight", "_runs", "place", "size")

    def __init__(
        self,
        place: int,
        runs: Sequence[tuple[str | None, bytes]],
        in_flight: Mapping[str, tuple[str | None, InFlight]] | None = None,
    ) -> None:
        in_flight = in_flight or {}
        self.place: int = place
        self._runs = runs
        self._in_flight = in_flight
        self._encoded: dict[str | None, bytes] = {}
        self.size: int = sum(len(chunk) for _, chunk in runs) + 100 * len(in_flight)

    def encoded_for(self, owner: str | None) -> bytes:
        """Return what is sent to a caller who sees the runs of an owner, or of all owners."""
        if owner not in self._encoded:
            chunks = [chunk for whose, chunk in self._runs if owner in {None, whose}]
            in_flight = {run_id: now for run_id, (whose, now) in self._in_flight.items() if owner in {None, whose}}
            if in_flight:
                chunks.append(message("flight", {"all": False, "runs": in_flight}))
            self._encoded[owner] = b"".join(chunks)
        return self._encoded[owner]


class ChangesFeed(Feed):
    """Queries the store when it has changed, and keeps the results for its readers for a while."""

    __slots__ = (
        "_batches",
        "_bytes",
        "_live",
        "_news",
        "_supervisor",
        "_task",
        "_unacknowledged",
        "end",
        "is_open",
        "lock",
        "place",
    )

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._news = asyncio.Event()
        self.lock: asyncio.Lock = asyncio.Lock()
        """Held during a poll and while a first piece is made."""
        self.is_open: bool = False
        self.place: int = 0
        self.end: int = 0  # how many batches there were, including those that were dropped
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._live: dict[str, RunSummary] = {}
        self._unacknowledged: dict[str, None] = {}
        super().__init__(supervisor.store, ANY)
        # In a context of its own: it belongs to no request.
        self._task = asyncio.get_running_loop().create_task(self._follow(), context=contextvars.Context())

    def close(self) -> None:
        """End the subscription and the polls."""
        super().close()
        self._task.cancel()

    def wake_all(self) -> None:
        """Query the store, and wake the readers if something changed."""
        self._is_woken = False
        self._news.set()

    def batches_after(self, number: int) -> list[Batch]:
        """Return the batches after the first ``number``."""
        if number < self.end - len(self._batches):
            raise Behind
        return list(self._batches)[len(self._batches) - (self.end - number) :] if number < self.end else []

    def in_flight_of(self, owner: str | None) -> dict[str, InFlight]:
        """Return what is in flight in the live runs of an owner, or of all owners."""
        return {
            run.id: run.in_flight for run in self._live.values() if run.in_flight != () and owner in {None, run.owner}
        }

    async def _follow(self) -> None:
        is_failing = False
        while True:
            try:
                async with self.lock:
                    if not self.is_open:
                        await self._load_live_runs()
                    await self._poll()
                is_failing = False
            except StoppableError as error:
                if not is_failing:
                    _logger.warning("changes of runs cannot be sent for now: %s", error)
                is_failing = True
            except Exception:
                _logger.exception("changes of runs cannot be sent for now")
            for reader in list(self.readers):
                reader.wake()
            await asyncio.sleep(_PAUSE)
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()

    async def _load_live_runs(self) -> None:
        """Take the live runs, and what is in flight in them, as what the pages know."""
        place = (await self._store.tail(2**62, 0)).place
        cursor, live = None, dict[str, RunSummary]()
        while True:
            page = await self._store.query(Filter(status=_LIVE), cursor, _PAGE)
            live |= {run.id: run for run in page.runs}
            cursor = page.cursor
            if cursor is None:
                break
        now = await self._supervisor.in_flight(list(live))
        self._live = {run_id: replace(run, in_flight=now.get(run_id, ())) for run_id, run in live.items()}
        self._unacknowledged = {
            run.id: None for run in live.values() if run.mode is not None and run.acknowledged_at is None
        }
        self.place, self.is_open = place, True

    @property
    def _store(self) -> Store:
        return self._supervisor.store

    async def _poll(self) -> None:
        changed: dict[str, int | None] = {}
        with_boundaries: dict[str, None] = {}
        place, has_more = self.place, True
        while has_more:
            tail = await self._store.tail(place, _EVENTS_PER_QUERY, types=(*_RECORD, *_BOUNDARY))
            for at, event in tail.events:
                if event.type in _RECORD:
                    changed.pop(event.run_id, None)  # so that the order is that of the last changes
                    changed[event.run_id] = at
                else:
                    with_boundaries[event.run_id] = None
            place, has_more = tail.place, tail.has_more
        records = await self._records(list(changed))
        # Changes without an event: a run that has not begun yet, and a stop that was acknowledged.
        pending = await self._store.query(Filter(status=frozenset({Status.PENDING})), None, _PAGE)
        without_event = [*list(self._unacknowledged)[:_MOST_UNACKNOWLEDGED], *(run.id for run in pending.runs)]
        others = await self._records([run_id for run_id in dict.fromkeys(without_event) if run_id not in records])
        live = _live_ids([*records.values(), *others.values()])
        now = await self._supervisor.in_flight(live | with_boundaries)
        self._publish({**others, **records}, changed, now)
        self.place = place

    async def _records(self, run_ids: Collection[str]) -> dict[str, RunRecord]:
        records: dict[str, RunRecord] = {}
        for run_id, reply in [(run_id, self._store.get(run_id)) for run_id in run_ids]:
            try:
                records[run_id] = await reply
            except RunNotFound:
                self._forget(run_id)  # purged
        return records

    def _publish(
        self, records: Mapping[str, RunRecord], places: Mapping[str, int | None], now: Mapping[str, InFlight]
    ) -> None:
        runs: list[tuple[str | None, bytes]] = []
        place, size = self.place, 0
        for run_id, record in records.items():
            summary = replace(RunSummary.of(record), in_flight=now.get(run_id, ()))
            if self._live.get(run_id) != summary:
                place = places.get(run_id) or place
                runs.append((record.owner, message("run", summary, places.get(run_id))))
                size += len(runs[-1][1])
            self._forget(run_id)
            if not record.over:
                self._live[run_id] = summary
                if not is_answered(record):
                    self._unacknowledged[run_id] = None
            if size >= _PIECE_BYTES:
                self._append(Batch(place, runs))
                runs, size = [], 0
        self._append(Batch(place, runs, self._changed_in_flight(now)))

    def _changed_in_flight(self, now: Mapping[str, InFlight]) -> Mapping[str, tuple[str | None, InFlight]]:
        """Return what is in flight in runs where that has changed, with their owners."""
        changed: dict[str, tuple[str | None, InFlight]] = {}
        for run_id, labels in now.items():
            live = self._live.get(run_id)
            if live is not None and live.in_flight != labels:
                self._live[run_id] = replace(live, in_flight=labels)
                changed[run_id] = live.owner, labels
        return changed

    def _forget(self, run_id: str) -> None:
        self._live.pop(run_id, None)
        self._unacknowledged.pop(run_id, None)

    def _append(self, batch: Batch) -> None:
        if not batch.size:
            return
        self._batches.append(batch)
        self._bytes += batch.size
        self.end += 1
        while len(self._batches) > _BATCHES or (self._bytes > _BATCH_BYTES and len(self._batches) > 1):
            self._bytes -= self._batches.popleft().size

    async def changes_after(self, after: int, owner: str | None) -> list[bytes] | None:
        """Return the runs that changed after a place, in the order of their last changes, or None if that is too much.

        The caller holds the lock.
        """
        if after > self.place:  # another query was faster
            await self._poll()
        if not self.place - _REPLAYED <= after <= self.place:
            return None
        changed: dict[str, int] = {}
        while after < self.place:
            tail = await self._store.tail(after, _EVENTS_PER_QUERY, types=_RECORD)
            for at, event in tail.events:
                changed.pop(event.run_id, None)
                changed[event.run_id] = at
            after = tail.place
        if len(changed) > _REPLAYED_RUNS:
            return None
        records = await self._records(list(changed))
        now = await self._supervisor.in_flight(_live_ids(records.values()))
        chunks = [
            message("run", replace(RunSummary.of(record), in_flight=now.get(run_id, ())), changed[run_id])
            for run_id, record in records.items()
            if owner in {None, record.owner}
        ]
        return chunks if sum(map(len, chunks)) <= _REPLAYED_BYTES else None


def _live_ids(records: Collection[RunRecord]) -> dict[str, None]:
    return {record.id: None for record in records if not record.over}


class ChangesView(View):
    """The changes of runs of an owner, or of all owners."""

    __slots__ = ("_batch_number", "_owner", "_resumes", "_supervisor")

    def __init__(self, supervisor: Supervisor, owner: str | None, *, resumes: bool) -> None:
        self.name: str = ANY
        self.run_id: str = ""
        self.is_replay: bool = False
        self.stops_run: bool = False
        self._supervisor = supervisor
        self._owner = owner
        self._resumes = resumes
        self._batch_number: int | None = None

    def make_feed(self, store: Store) -> Feed:  # noqa: ARG002 - it needs more than that
        """Return the feed that all such views share."""
        return ChangesFeed(self._supervisor)

    async def read(self, store: Store, feed: Feed, after: int) -> Piece:  # noqa: ARG002 - the feed has read it
        """Return the changes that the feed found, or at first the current state."""
        assert isinstance(feed, ChangesFeed), "make_feed() returns a ChangesFeed"
        if self._batch_number is None:
            return await self._first_piece(feed, after)
        chunks: list[bytes] = []
        size = 0
        for batch in feed.batches_after(self._batch_number):
            self._batch_number += 1
            chunks.append(batch.encoded_for(self._owner))
            size += len(chunks[-1])
            after = batch.place
            if size >= _PIECE_BYTES:
                break
        return Piece(b"".join(chunks), after)

    async def _first_piece(self, feed: ChangesFeed, after: int) -> Piece:
        async with feed.lock:
            if not feed.is_open:
                return Piece(b"", after)  # it wakes us
            missed = await feed.changes_after(after, self._owner) if self._resumes else None
            hello = {"place": feed.place, "now": self._supervisor.store.now(), "reset": missed is None}
            in_flight = {"all": True, "runs": feed.in_flight_of(self._owner)}
            chunks = [message("hello", hello), *(missed or ()), message("flight", in_flight, feed.place)]
            self._batch_number = feed.end
            return Piece(b"".join(chunks), feed.place)

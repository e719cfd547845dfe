"""Changes of all runs, for live lists: one query of the store serves every open page."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from stoppable._core.state import Status
from stoppable.errors import RunNotFound, StoppableError
from stoppable.records import EventType, Filter, RunRecord, RunSummary
from stoppable.server.sse.feed import Feed, Piece, message
from stoppable.server.sse.views import Behind, View
from stoppable.stores.base import Store
from stoppable.stores.listeners import ANY
from stoppable.stores.rules import is_answered
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.server")

_RECORD = (EventType.STATUS, EventType.DONE, EventType.LATE)
_BOUNDARY = (EventType.ENTERED, EventType.LEFT, EventType.TRUNCATED)
_LIVE = frozenset(status for status in Status if not status.terminal)

_PAUSE = 0.1  # seconds between two queries, however much happens
_LOOK_SECONDS = 5.0  # even without a notification: those may be lost
_AT_ONCE = 5_000  # events per query
_PAGE = 1_000
_UNSETTLED = 200  # runs that are read again because their stop was not acknowledged
_REPLAYED = 200_000  # events: a page that missed more reloads the list
_REPLAYED_RUNS = 2_000
_REPLAYED_BYTES = 1_000_000
_PIECE_BYTES = 262_144  # sent at once: a slow page must not buffer much
_BATCHES = 1_000
_BATCH_BYTES = 16_000_000

Flight = tuple[str, ...] | None


class Batch:
    """A part of the result of one query, encoded once; ``place`` is that of its last run."""

    __slots__ = ("_flights", "_runs", "_told", "place", "size")

    def __init__(
        self,
        place: int,
        runs: Sequence[tuple[str | None, bytes]],
        flights: Mapping[str, tuple[str | None, Flight]] | None = None,
    ) -> None:
        flights = flights or {}
        self.place: int = place
        self._runs = runs
        self._flights = flights
        self._told: dict[str | None, bytes] = {}
        self.size: int = sum(len(chunk) for _, chunk in runs) + 100 * len(flights)

    def told(self, owner: str | None) -> bytes:
        """Return what is sent to a caller who sees the runs of an owner, or of all owners."""
        if owner not in self._told:
            chunks = [chunk for whose, chunk in self._runs if owner in {None, whose}]
            flights = {run_id: now for run_id, (whose, now) in self._flights.items() if owner in {None, whose}}
            if flights:
                chunks.append(message("flight", {"all": False, "runs": flights}))
            self._told[owner] = b"".join(chunks)
        return self._told[owner]


class ChangesFeed(Feed):
    """Queries the store when it has changed, and keeps the results for its readers for a while."""

    __slots__ = (
        "_batches",
        "_bytes",
        "_live",
        "_news",
        "_supervisor",
        "_task",
        "_unsettled",
        "end",
        "is_open",
        "lock",
        "place",
    )

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._news = asyncio.Event()
        self.lock: asyncio.Lock = asyncio.Lock()
        """Held during a query, so that older results are never sent after newer ones."""
        self.is_open: bool = False
        self.place: int = 0
        self.end: int = 0  # how many batches there were
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._live: dict[str, RunSummary] = {}
        self._unsettled: dict[str, None] = {}
        super().__init__(supervisor.store, ANY)
        # It belongs to no request.
        self._task = asyncio.get_running_loop().create_task(self._follow(), context=contextvars.Context())

    def close(self) -> None:
        """Stop querying."""
        super().close()
        self._task.cancel()

    def wake_all(self) -> None:
        """Query the store, and wake the readers if something changed."""
        self._is_woken = False
        self._news.set()

    def since(self, number: int) -> list[Batch]:
        """Return the batches after the first ``count``."""
        if number < self.end - len(self._batches):
            raise Behind
        return list(self._batches)[len(self._batches) - (self.end - number) :] if number < self.end else []

    def flights(self, owner: str | None) -> dict[str, Flight]:
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
                        await self._open()
                    await self._look()
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
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()

    async def _open(self) -> None:
        """Read the live runs."""
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
        self._unsettled = {
            run.id: None for run in live.values() if run.mode is not None and run.acknowledged_at is None
        }
        self.place, self.is_open = place, True

    @property
    def _store(self) -> Store:
        return self._supervisor.store

    async def _look(self) -> None:
        changed: dict[str, int | None] = {}
        moved: dict[str, None] = {}
        place, has_more = self.place, True
        while has_more:
            tail = await self._store.tail(place, _AT_ONCE, types=(*_RECORD, *_BOUNDARY))
            for at, event in tail.events:
                if event.type in _RECORD:
                    changed.pop(event.run_id, None)  # so that the order is that of the last changes
                    changed[event.run_id] = at
                else:
                    moved[event.run_id] = None
            place, has_more = tail.place, tail.has_more
        records = await self._records(list(changed))
        # Changes without an event: of a run that has not begun, and acknowledged stops.
        pending = await self._store.query(Filter(status=frozenset({Status.PENDING})), None, _PAGE)
        again = dict.fromkeys([*list(self._unsettled)[:_UNSETTLED], *(run.id for run in pending.runs)])
        others = await self._records([run_id for run_id in again if run_id not in records])
        now = await self._supervisor.in_flight(_live_of([*records.values(), *others.values()]) | moved.keys())
        self._tell({**others, **records}, changed, now)
        self.place = place

    async def _records(self, run_ids: Collection[str]) -> dict[str, RunRecord]:
        found: dict[str, RunRecord] = {}
        for run_id, reply in [(run_id, self._store.get(run_id)) for run_id in run_ids]:
            try:
                found[run_id] = await reply
            except RunNotFound:
                self._forget(run_id)  # purged
        return found

    def _tell(
        self, records: Mapping[str, RunRecord], places: Mapping[str, int | None], now: Mapping[str, Flight]
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
                    self._unsettled[run_id] = None
            if size >= _PIECE_BYTES:
                self._keep(Batch(place, runs))
                runs, size = [], 0
        self._keep(Batch(place, runs, self._moved(now)))

    def _moved(self, now: Mapping[str, Flight]) -> Mapping[str, tuple[str | None, Flight]]:
        """Return what is in flight in runs where that has changed, with their owners."""
        flights: dict[str, tuple[str | None, Flight]] = {}
        for run_id, flight in now.items():
            live = self._live.get(run_id)
            if live is not None and live.in_flight != flight:
                self._live[run_id] = replace(live, in_flight=flight)
                flights[run_id] = live.owner, flight
        return flights

    def _forget(self, run_id: str) -> None:
        self._live.pop(run_id, None)
        self._unsettled.pop(run_id, None)

    def _keep(self, batch: Batch) -> None:
        if not batch.size:
            return
        self._batches.append(batch)
        self._bytes += batch.size
        self.end += 1
        while len(self._batches) > _BATCHES or (self._bytes > _BATCH_BYTES and len(self._batches) > 1):
            self._bytes -= self._batches.popleft().size

    async def since_place(self, after: int, owner: str | None) -> list[bytes] | None:
        """Return the runs that changed after a place, in the order of their last changes, or None if that is too much.

        The caller holds the lock.
        """
        if after > self.place:  # another query was faster
            await self._look()
        if not self.place - _REPLAYED <= after <= self.place:
            return None
        changed: dict[str, int] = {}
        while after < self.place:
            tail = await self._store.tail(after, _AT_ONCE, types=_RECORD)
            for at, event in tail.events:
                changed.pop(event.run_id, None)
                changed[event.run_id] = at
            after = tail.place
        if len(changed) > _REPLAYED_RUNS:
            return None
        records = await self._records(list(changed))
        now = await self._supervisor.in_flight(_live_of(records.values()))
        told = [
            message("run", replace(RunSummary.of(record), in_flight=now.get(run_id, ())), changed[run_id])
            for run_id, record in records.items()
            if owner in {None, record.owner}
        ]
        return told if sum(map(len, told)) <= _REPLAYED_BYTES else None


def _live_of(records: Collection[RunRecord]) -> dict[str, None]:
    return {record.id: None for record in records if not record.over}


class ChangesView(View):
    """The changes of runs of an owner, or of all owners."""

    __slots__ = ("_at", "_owner", "_resumes", "_supervisor")

    def __init__(self, supervisor: Supervisor, owner: str | None, *, resumes: bool) -> None:
        self.name: str = ANY
        self.run_id: str = ""
        self.is_replay: bool = False
        self.stops_run: bool = False
        self._supervisor = supervisor
        self._owner = owner
        self._resumes = resumes
        self._at: int | None = None

    def make_feed(self, store: Store) -> Feed:  # noqa: ARG002 - it needs more than that
        """Return the feed that all such views share."""
        return ChangesFeed(self._supervisor)

    async def read(self, store: Store, feed: Feed, after: int) -> Piece:  # noqa: ARG002 - the feed has read it
        """Return the changes that the feed found, or at first the current state."""
        assert isinstance(feed, ChangesFeed), "it made it"
        if self._at is None:
            return await self._greet(feed, after)
        chunks: list[bytes] = []
        size = 0
        for batch in feed.since(self._at):
            self._at += 1
            chunks.append(batch.told(self._owner))
            size += len(chunks[-1])
            after = batch.place
            if size >= _PIECE_BYTES:
                break
        return Piece(b"".join(chunks), after)

    async def _greet(self, feed: ChangesFeed, after: int) -> Piece:
        async with feed.lock:
            if not feed.is_open:
                return Piece(b"", after)  # it wakes us
            missed = await feed.since_place(after, self._owner) if self._resumes else None
            hello = {"place": feed.place, "now": self._supervisor.store.now(), "reset": missed is None}
            flights = {"all": True, "runs": feed.flights(self._owner)}
            chunks = [message("hello", hello), *(missed or ()), message("flight", flights, feed.place)]
            self._at = feed.end
            return Piece(b"".join(chunks), feed.place)

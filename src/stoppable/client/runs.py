"""Handles of runs of a server."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from stoppable._core import clock
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.client.errors import ServerError, ServerUnreachable
from stoppable.errors import RunFailed, RunLost, RunStopped, StoreError
from stoppable.records import Event, OutcomeRecord, RunRecord

if TYPE_CHECKING:
    from stoppable.client.asynchronous import AsyncClient
    from stoppable.client.blocking_calls import BlockingCalls

_LOOK_SECONDS = 0.2

LAST_WORD_SECONDS = 5.0
"""How long leaving a block may take to stop its run."""

_UNCLEAR = (ServerUnreachable, ServerError, StoreError)  # a proxy that answers 504 has forwarded the request


class AsyncClientRun:
    """A run of a server: what ``start`` and ``handle`` of an ``AsyncClient`` return."""

    def __init__(self, client: AsyncClient, run_id: str, record: RunRecord | None = None) -> None:
        self._client = client
        self._id = run_id
        self._record = record

    @property
    def id(self) -> str:
        """The run's id."""
        return self._id

    @property
    def last_record(self) -> RunRecord | None:
        """The record that the server sent last, without asking again; after a start, the record of the new run."""
        return self._record

    async def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: str | None = None,
        *,
        grace: float | None = None,
        wait: float | None = None,
    ) -> Receipt:
        """Stop the run and its subtree; with ``wait``, wait up to that many seconds for the end."""
        return await self._client.stop(self.id, mode, reason, grace=grace, wait=wait)

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of the run, past and live, until it ends."""
        return self._client.events(self.id, after)

    async def record(self) -> RunRecord:
        """Return the record of the run, or raise RunNotFound."""
        self._record = await self._client.get(self.id)
        return self._record

    async def receipt(self) -> Receipt | None:
        """Return the receipt of its stops so far, or None if it was not stopped."""
        return await self._client.receipt(self.id)

    async def wait(self, seconds: float | None = None) -> RunRecord:
        """Wait for the end, at most that many seconds, and return the record; ``over`` says if the run has ended."""
        import asyncio  # noqa: PLC0415 - commands do without it

        try:
            async with asyncio.timeout(seconds):
                return await self._ended()
        except TimeoutError:
            return await self.record()

    async def outcome(self) -> OutcomeRecord:
        """Wait for the end and return it; never raises because the run was stopped."""
        return _outcome(await self._ended())

    async def result(self) -> Any:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost."""
        return result_of(await self._ended())

    async def _ended(self) -> RunRecord:
        record = self._record or await self.record()
        if not record.over:
            async for _ in self.events(record.last_event):
                pass
            record = await self.record()
        return record

    def __repr__(self) -> str:
        return f"<AsyncClientRun {self.id}>"


class ClientRun:
    """A run of a server: what ``start`` and ``handle`` of a ``Client`` return."""

    def __init__(self, client: BlockingCalls, run_id: str, record: RunRecord | None = None) -> None:
        self._client = client
        self._id = run_id
        self._record = record

    @property
    def id(self) -> str:
        """The run's id."""
        return self._id

    @property
    def last_record(self) -> RunRecord | None:
        """The record that the server sent last, without asking again; after a start, the record of the new run."""
        return self._record

    def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: str | None = None,
        *,
        grace: float | None = None,
        wait: float | None = None,
    ) -> Receipt:
        """Stop the run and its subtree; with ``wait``, wait up to that many seconds for the end."""
        return self._client.stop(self.id, mode, reason, grace=grace, wait=wait)

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield the events of the run, past and live, until it ends."""
        return self._client.events(self.id, after)

    def record(self) -> RunRecord:
        """Return the record of the run, or raise RunNotFound."""
        self._record = self._client.get(self.id)
        return self._record

    def receipt(self) -> Receipt | None:
        """Return the receipt of its stops so far, or None if it was not stopped."""
        return self._client.receipt(self.id)

    def wait(self, seconds: float | None = None) -> RunRecord:
        """Wait for the end, at most that many seconds, and return the record; ``over`` says if the run has ended."""
        if seconds is None:
            return self._ended()
        deadline = clock.now() + seconds
        while not (record := self.record()).over and (left := deadline - clock.now()) > 0:
            pause(min(left, _LOOK_SECONDS))
        return record

    def outcome(self) -> OutcomeRecord:
        """Wait for the end and return it; never raises because the run was stopped."""
        return _outcome(self._ended())

    def result(self) -> Any:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost."""
        return result_of(self._ended())

    def _ended(self) -> RunRecord:
        record = self._record or self.record()
        if not record.over:
            for _ in self.events(record.last_event):
                pass
            record = self.record()
        return record

    def __repr__(self) -> str:
        return f"<ClientRun {self.id}>"


def _outcome(record: RunRecord) -> OutcomeRecord:
    assert record.outcome is not None, "it is over"
    return record.outcome


def result_of(record: RunRecord) -> Any:
    """Return the value of a run that has ended, or raise RunStopped, RunFailed or RunLost."""
    from stoppable.supervisor.serialization import outcome_of  # noqa: PLC0415 - it brings the engine

    outcome = outcome_of(record)
    match outcome.status:
        case Status.COMPLETED:
            return outcome.result
        case Status.FAILED:
            raise RunFailed(record.id, outcome) from outcome.error
        case Status.LOST:
            raise RunLost(record.id, outcome)
        case _:
            raise RunStopped(record.id, outcome)


def may_have_started(error: BaseException) -> bool:
    """Return whether a start that failed like this may have reached the server: then the run must be stopped."""
    return isinstance(error, _UNCLEAR) or not isinstance(error, Exception)


def left_because(error: BaseException) -> str:
    """Return the reason of the stop of a run whose block was left."""
    return f"its block was left by {type(error).__name__}: {error}".removesuffix(": ")[:500]


def pause(seconds: float) -> None:
    """Sleep on a thread; not ``sync.sleep``, because sending a stop must work while the own run is being stopped."""
    threading.Event().wait(seconds)

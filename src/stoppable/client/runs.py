"""A run of a server, as a client holds it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.client.errors import ServerError, ServerUnreachable
from stoppable.errors import RunFailed, RunLost, RunStopped, StoreError
from stoppable.records import Event, OutcomeRecord, RunRecord

if TYPE_CHECKING:
    from stoppable.client.asynchronous import AsyncClient
    from stoppable.client.blocking_calls import BlockingCalls

LAST_WORD_SECONDS = 5.0
"""How long leaving a block may take to stop its run."""

_UNCLEAR = (ServerUnreachable, ServerError, StoreError)  # a proxy that answers 504 has passed it on


class AsyncClientRun:
    """A run that was started over HTTP."""

    def __init__(self, client: AsyncClient, record: RunRecord) -> None:
        self._client = client
        self._record = record

    @property
    def id(self) -> str:
        """The run's id."""
        return self._record.id

    async def stop(self, mode: str = Mode.GRACEFUL, reason: str | None = None, *, wait: float | None = None) -> Receipt:
        """Stop the run with its subtree."""
        return await self._client.stop(self.id, mode, reason, wait=wait)

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of the run, past ones first, until it ends."""
        return self._client.events(self.id, after)

    async def record(self) -> RunRecord:
        """Return the current record of the run."""
        self._record = await self._client.get(self.id)
        return self._record

    async def outcome(self) -> OutcomeRecord:
        """Wait for the end and return it; never raises because the run was stopped."""
        return _outcome(await self._ended())

    async def result(self) -> Any:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost."""
        return result_of(await self._ended())

    async def _ended(self) -> RunRecord:
        if not self._record.over:
            async for _ in self.events(self._record.last_event):
                pass
            await self.record()
        return self._record

    def __repr__(self) -> str:
        return f"<AsyncClientRun {self.id} {self._record.name!r}>"


class ClientRun:
    """A run that was started over HTTP."""

    def __init__(self, client: BlockingCalls, record: RunRecord) -> None:
        self._client = client
        self._record = record

    @property
    def id(self) -> str:
        """The run's id."""
        return self._record.id

    def stop(self, mode: str = Mode.GRACEFUL, reason: str | None = None, *, wait: float | None = None) -> Receipt:
        """Stop the run with its subtree."""
        return self._client.stop(self.id, mode, reason, wait=wait)

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield the events of the run, past ones first, until it ends."""
        return self._client.events(self.id, after)

    def record(self) -> RunRecord:
        """Return the current record of the run."""
        self._record = self._client.get(self.id)
        return self._record

    def outcome(self) -> OutcomeRecord:
        """Wait for the end and return it; never raises because the run was stopped."""
        return _outcome(self._ended())

    def result(self) -> Any:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost."""
        return result_of(self._ended())

    def _ended(self) -> RunRecord:
        if not self._record.over:
            for _ in self.events(self._record.last_event):
                pass
            self.record()
        return self._record

    def __repr__(self) -> str:
        return f"<ClientRun {self.id} {self._record.name!r}>"


def _outcome(record: RunRecord) -> OutcomeRecord:
    assert record.outcome is not None, "it is over"
    return record.outcome


def result_of(record: RunRecord) -> Any:
    """Return the value of a run that is over, or raise what whoever awaits it gets."""
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
    """Return whether a start that ended like this may have been heard: then it must be taken back."""
    return isinstance(error, _UNCLEAR) or not isinstance(error, Exception)


def left_because(error: BaseException) -> str:
    """Return the reason of the stop of a run whose block was left."""
    return f"its block was left by {type(error).__name__}: {error}".removesuffix(": ")[:500]


def pause(seconds: float) -> None:
    """Wait on a thread; not the stop-aware sleep, since telling of a stop must work while one is under way."""
    threading.Event().wait(seconds)

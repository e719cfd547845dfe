"""Handles of runs in a store."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stoppable._core.node import RunNode
from stoppable._core.outcome import Outcome
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.run import Run
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer, Receipt
from stoppable._engine.handle import RunHandle, Until
from stoppable.errors import InvalidArgument, RunFailed, RunLost, RunStopped
from stoppable.records import Event, RunRecord
from stoppable.stores.rules import receipt_of
from stoppable.supervisor.jobs import OnDisconnect
from stoppable.supervisor.recorder import RunLog
from stoppable.supervisor.serialization import outcome_of, shifted
from stoppable.supervisor.waiting import events, record_when

if TYPE_CHECKING:
    from stoppable.supervisor import Supervisor

T_co = TypeVar("T_co", covariant=True)


class KeptHandle(RunHandle[T_co], Generic[T_co]):
    """A run of a store, wherever it is executed: what ``Supervisor.start`` and ``Supervisor.handle`` return."""

    __slots__ = ()

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of the run, past ones first, until it ends."""
        raise NotImplementedError

    async def record(self) -> RunRecord:
        """Return the current record of the run."""
        raise NotImplementedError


class SupervisedHandle(KeptHandle[T_co], Generic[T_co]):
    """A run that this process executes; its stops and its end are stored before the caller learns of them."""

    __slots__ = ("_log", "_on_disconnect", "_supervisor")

    def __init__(
        self, supervisor: Supervisor, held: RunHandle[T_co], log: RunLog, on_disconnect: OnDisconnect = "keep"
    ) -> None:
        super().__init__(held._run, held._carrier, held._channel)
        self._supervisor = supervisor
        self._log = log
        self._on_disconnect: OnDisconnect = on_disconnect

    async def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
        *,
        wait: float | None = None,
    ) -> Receipt:
        """Stop the run and its subtree; when this returns, the stop is in the store (G14).

        With ``wait`` it waits up to that many seconds for the end.
        """
        return await self._supervisor.stop(self.id, mode, reason, actor, grace, wait=wait)

    async def outcome(self) -> Outcome[T_co]:
        """Wait until the end is stored, and return it; never raises because the run was stopped."""
        outcome = await super().outcome()
        await self._supervisor._core.recorder.kept(self._log)
        return outcome

    async def result(self) -> T_co:
        """Wait until the end is stored, and return the value, or raise RunStopped, RunFailed or RunLost."""
        await self.outcome()
        return await super().result()

    async def stream(self, *, until: Until = "end") -> AsyncIterator[Any]:
        """Yield the items of a generator agent; ends as ``result()`` does.

        A run that was started with ``on_disconnect="stop"`` is stopped if its reader leaves early. With
        ``until="body"`` it ends without an error as soon as the generator has ended, even if the run goes on.
        """
        try:
            async for item in super().stream(until=until):
                yield item
        except (GeneratorExit, CancelledError):  # nothing may be awaited here
            reader_left(self._run, self._on_disconnect)
            raise

    async def receipt(self) -> Receipt | None:
        """Return the receipt of the stops of this run so far, or None if it was not stopped."""
        found = self.run.receipt
        if found is not None and found.final and (record := await self.record()).over:
            return kept_receipt(record)
        return None if found is None else shifted(found, self._log.offset)

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of the run, past ones first, until it ends."""
        async for event in self._supervisor.events(self.id, after):
            yield event

    async def record(self) -> RunRecord:
        """Return the current record of the run."""
        return await self._supervisor.get(self.id)


class Elsewhere:
    """The common part of async and blocking handles of a run in another process."""

    __slots__ = ()

    _id: str

    @property
    def id(self) -> str:
        """The run's id."""
        return self._id

    @property
    def run(self) -> Run:
        """Raise an error: the run is in another process."""
        raise InvalidArgument(f"run {self._id} is not executed by this process: use record()")

    @property
    def status(self) -> Status:
        """Raise an error: only the store knows the status."""
        raise InvalidArgument(f"run {self._id} is not executed by this process: use record()")

    def __repr__(self) -> str:
        return f"<StoredHandle {self._id}>"


# Attributes that handles of local runs have raise an error here.
class StoredHandle(Elsewhere, KeptHandle[Any]):
    """A run of which only the id is known: another process executes it, or it has ended.

    Values and errors come from the store, as JSON and text.
    """

    __slots__ = ("_id", "_supervisor")

    def __init__(self, supervisor: Supervisor, run_id: str) -> None:
        self._supervisor = supervisor
        self._id = run_id

    async def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
        *,
        wait: float | None = None,
    ) -> Receipt:
        """Stop the run and its subtree; when this returns, the stop is in the store (G14).

        With ``wait`` it waits up to that many seconds for the end.
        """
        return await self._supervisor.stop(self._id, mode, reason, actor, grace, wait=wait)

    async def outcome(self) -> Outcome[Any]:
        """Wait for the end and return what the store has of it."""
        store = self._supervisor._core.store
        return outcome_of(await record_when(store, self._id, lambda record: record.over))

    async def result(self) -> Any:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost."""
        return raise_unless_completed(self._id, await self.outcome())

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of the run, past ones first, until it ends."""
        async for event in events(self._supervisor._core.store, self._id, after):
            yield event

    async def receipt(self) -> Receipt | None:
        """Return the stored receipt of this run, or None if it was not stopped."""
        return kept_receipt(await self.record())

    async def join(self) -> Outcome[Any]:
        """Raise an error: only the process that executes the run can pass a cancel on at once."""
        raise InvalidArgument(f"run {self._id} is not executed by this process: use outcome()")

    async def stream(self, *, until: Until = "end") -> AsyncIterator[Any]:  # noqa: ARG002 - as in the base class
        """Raise an error: the items of a generator agent are available only in the process that executes it.

        A run that was stopped before it began has none: the error is RunStopped.
        """
        if never_began(await self.record()):
            await self.result()
        raise InvalidArgument(f"run {self._id} is not executed by this process: use events()")
        yield  # makes it a generator

    async def record(self) -> RunRecord:
        """Return the current record of the run."""
        return await self._supervisor.get(self._id)


def reader_left(run: RunNode, on_disconnect: OnDisconnect) -> None:
    """Stop a run whose reader has left its stream, if it was started that way."""
    if on_disconnect == "stop" and run.outcome is None:
        run.stop(reason=Reason.of("its reader left", kind=ReasonKind.DISCONNECT))


def never_began(record: RunRecord) -> bool:
    """Return whether a run was stopped before its body began."""
    return record.status is Status.STOPPED and record.started_at is None


def kept_receipt(record: RunRecord) -> Receipt | None:
    """Return the receipt in a record, or None if the run was not stopped."""
    if record.stop is None or record.receipt is not None:
        return record.receipt
    return receipt_of(record, Answer.ACCEPTED, record.status, record.ended_at)


def raise_unless_completed(run_id: str, outcome: Outcome[Any]) -> Any:
    """Return the value of a run, or raise RunStopped, RunFailed or RunLost."""
    match outcome.status:
        case Status.COMPLETED:
            return outcome.result
        case Status.FAILED:
            raise RunFailed(run_id, outcome) from outcome.error
        case Status.LOST:
            raise RunLost(run_id, outcome)
        case _:
            raise RunStopped(run_id, outcome)

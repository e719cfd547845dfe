"""Handles of runs in a store, and a start in two steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stoppable._core.hooks import Callback, Moment
from stoppable._core.stop import Receipt
from stoppable._core.values import Mode, Outcome, Reason, ReasonKind
from stoppable._engine.handle import RunHandle, Until, is_body
from stoppable.errors import InvalidArgument
from stoppable.records import Event, RunRecord, outcome_of
from stoppable.supervisor._async.primitives import READER_LEFT, Handle, answer, parts_of
from stoppable.supervisor.core import (
    RemoteHandleMixin,
    never_began,
    raise_unless_completed,
    stop_if_reader_left,
    stored_receipt,
)
from stoppable.supervisor.jobs import Job, OnDisconnect
from stoppable.supervisor.log_writer import RunLog, on_store_clock

if TYPE_CHECKING:
    from stoppable.supervisor._async.supervisor import Supervisor

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class StoreHandle(Handle[T_co], Generic[T_co]):
    """A run of a store, wherever it is executed: what ``Supervisor.start`` and ``Supervisor.handle`` return."""

    __slots__ = ("_supervisor",)

    _supervisor: Supervisor

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

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of the run, past ones first, until it ends."""
        async for event in self._supervisor.events(self.id, after):
            yield event

    async def record(self) -> RunRecord:
        """Return the current record of the run."""
        return await self._supervisor.get(self.id)


class LocalHandle(StoreHandle[T_co], Generic[T_co]):
    """A run that this process executes; its stops and its end are stored before the caller learns of them."""

    __slots__ = ("_log", "_on_disconnect")

    def __init__(
        self, supervisor: Supervisor, handle: RunHandle[T_co], log: RunLog, on_disconnect: OnDisconnect = "keep"
    ) -> None:
        super().__init__(*parts_of(handle))
        self._supervisor = supervisor
        self._log = log
        self._on_disconnect: OnDisconnect = on_disconnect

    async def outcome(self) -> Outcome[T_co]:
        """Wait until the end is stored, and return it; never raises because the run was stopped."""
        outcome = await super().outcome()
        await answer(self._supervisor._core.writer.when_stored(self._log))
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
        except READER_LEFT:  # nothing may be awaited here
            stop_if_reader_left(self._run, self._on_disconnect)
            raise

    async def receipt(self) -> Receipt | None:
        """Return the receipt of the stops of this run so far, or None if it was not stopped."""
        receipt = self.run.receipt
        if receipt is not None and receipt.final and (record := await self.record()).over:
            return stored_receipt(record)
        return None if receipt is None else on_store_clock(receipt, self._log.offset)


# Attributes that handles of local runs have raise an error here.
class RemoteHandle(RemoteHandleMixin, StoreHandle[Any]):
    """A run of which only the id is known: another process executes it, or it has ended.

    Values and errors come from the store, as JSON and text.
    """

    __slots__ = ("_id",)

    def __init__(self, supervisor: Supervisor, run_id: str) -> None:
        self._supervisor = supervisor
        self._id = run_id

    async def outcome(self) -> Outcome[Any]:
        """Wait for the end and return what the store has of it."""
        return outcome_of(await self._supervisor._wait_for_end(self._id))

    async def result(self) -> Any:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost."""
        return raise_unless_completed(self._id, await self.outcome())

    async def receipt(self) -> Receipt | None:
        """Return the stored receipt of this run, or None if it was not stopped."""
        return stored_receipt(await self.record())

    async def join(self) -> Outcome[Any]:
        """Raise an error: only the process that executes the run can pass a cancel on at once."""
        raise InvalidArgument(f"run {self._id} is not executed by this process: use outcome()")

    async def stream(self, *, until: Until = "end") -> AsyncIterator[Any]:
        """Raise an error: the items of a generator agent are available only in the process that executes it.

        A run that was stopped before it began has none: the error is RunStopped, or none with ``until="body"``.
        """
        until_body = is_body(until)
        if never_began(await self.record()):
            if not until_body:
                await self.result()
            return
        raise InvalidArgument(f"run {self._id} is not executed by this process: use events()")
        yield  # makes it a generator


class _SkipHook(Callback):
    """Ends a run that is stopped before its body begins."""

    __slots__ = ()

    is_look = False


class Prepared(Generic[T]):
    """A run that is in the store, so that it can be found and stopped, but has not begun.

    ``is_new`` is False if it must not be launched: an earlier request has started it, or its stop came first.
    """

    __slots__ = ("_hook", "_job", "_log", "_supervisor", "id", "is_new")

    def __init__(self, supervisor: Supervisor, job: Job, log: RunLog | None) -> None:
        self._supervisor = supervisor
        self._job = job
        self._log = log
        self._hook: _SkipHook | None = None
        self.id: str = job.run.id
        self.is_new: bool = log is not None

    def launch(self) -> StoreHandle[T]:
        """Start the run, once, and return its handle: an async agent on the running loop, a blocking one on a thread.

        If it cannot begin, the record says so, and the error is raised.
        """
        if self._log is None:
            return self._supervisor.handle(self.id)
        if self._hook is not None:
            self._hook.remove()  # from here on a stop goes to the body, which does not run if one came before
        handle: StoreHandle[Any] = LocalHandle(
            self._supervisor, self._job.launch(), self._log, self._job.options.on_disconnect
        )
        return handle

    def queue(self) -> None:
        """Let a stop end the run at once until it is launched: call it if something else has to end first."""
        if self._log is not None:
            self._hook = _SkipHook(self._job.run, Moment.STOP, self._job.run.skip)
            self._job.run.add_hook(self._hook)

    def abandon(self, reason: str = "it was never begun") -> None:
        """End the run instead of launching it: it is ``stopped``, and its body never runs."""
        if self._log is not None:
            self._job.run.stop(reason=Reason.of(reason, kind=ReasonKind.EXTERNAL))
            self._job.run.skip()

"""Any AgentExecutor as one whose tasks can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from abc import abstractmethod
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Task

from stoppable import (
    EventType,
    Mode,
    Outcome,
    Policy,
    Reason,
    ReasonKind,
    RunHandle,
    Status,
    StoppableError,
    instrument,
)
from stoppable.adapters.a2a.fence import Absorbing, Fence
from stoppable.adapters.a2a.states import (
    CANCELED,
    FACTS,
    REJECTED,
    RUN,
    SUBMITTED,
    TERMINAL,
    Address,
    Asked,
    key_of,
    mark_begun,
    short,
    state_of,
    told,
)
from stoppable.records import TreeEvent
from stoppable.supervisor import BulkStop, Listener, StartOptions, Supervisor

POLICY = Policy(grace=2.0, interrupt=0.25, cancel=1.0, kill=0.5, blind_grace=0.0)
"""Four seconds in total, so that a client with a timeout of five sees the end; a blind run is cancelled at once."""

_HOOK_SECONDS = 0.5


@dataclass(slots=True)
class Cancel:
    """The cancels of a task that are being answered."""

    requests: int = 0
    has_ended: bool = False
    """Whether the task has ended with one of them."""
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class RunExecutor(AgentExecutor):
    """Handles each message as a run, and publishes the end of the task once the run has its own.

    The runs of a task have its key (``key(task_id, owner)``), so that a stop finds them on any replica.
    """

    def __init__(
        self, supervisor: Supervisor, name: str, *, policy: Policy = POLICY, mode: str = Mode.GRACEFUL
    ) -> None:
        instrument()  # the threads and processes that agents start belong to their runs
        self.supervisor = supervisor
        self.name = name
        self.policy = policy
        self.mode: Mode = Mode.of(mode)
        self._executing: dict[Address, int] = {}  # runs per task, until the task has its end or waits for a message
        self._canceling: dict[Address, Cancel] = {}  # the tasks that are being canceled
        self._background: set[asyncio.Task[Any]] = set()  # asyncio itself keeps only weak references

    # What is done for one message

    @abstractmethod
    async def _start(self, context: RequestContext, fence: Fence, options: StartOptions) -> RunHandle[Any]:
        """Start the run of a message; a StoppableError means that the task is rejected."""

    async def _awaited(self, handle: RunHandle[Any], context: RequestContext, fence: Fence) -> Outcome[Any]:  # noqa: ARG002
        """Wait for the end of a run."""
        return await handle.outcome()

    @abstractmethod
    async def _publish_own_end(self, outcome: Outcome[Any], fence: Fence) -> bool:
        """Publish the end of a run that no stop ended, and return whether the task has ended with it."""

    async def _call_cancel(self, context: RequestContext) -> None:
        """Notify the executor of a task that it is being stopped."""

    # What the SDK calls

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Handle a message as a run, and publish the end of the task once the run has its own.

        A task that has ended executes nothing more: the SDK hands over messages that were queued behind the run which
        ended it, and those are left alone.
        """
        task_id, context_id = ids_of(context)
        if await self._has_ended(context):
            return
        mark_begun(context.call_context)
        fence = Fence(event_queue, task_id, context_id, has_task=context.current_task is not None)
        address = Address.of(context.call_context, task_id)
        self._executing[address] = self._executing.get(address, 0) + 1
        is_ended = False
        try:
            is_ended = await self._run(context, fence)
        finally:
            fence.shut()
            if not is_ended:  # otherwise the store reports it, once it has the end
                self.forget(address)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """End a task that waits for a message: no run of it is live."""
        await self._call_cancel(context)
        facts = context.call_context.state.get(FACTS)
        await TaskUpdater(event_queue, *ids_of(context)).update_status(CANCELED, metadata=facts)

    # What the request handler calls

    def key(self, task_id: str, owner: str | None = None) -> str:
        """Return the key of a task's runs; ``owner`` is the name of its authenticated user."""
        return key_of(self.name, Address(None if owner is None else short(owner), task_id))

    def is_executing(self, address: Address) -> bool:
        """Return whether this process has a run of a task whose end is not yet in the task store."""
        return address in self._executing

    @property
    def tasks(self) -> tuple[Address, ...]:
        """The tasks with such a run."""
        return tuple(self._executing)

    @contextlib.contextmanager
    def canceling(self, address: Address) -> Iterator[Cancel]:
        """Let the messages of a task wait until its cancels are answered."""
        cancel = self._canceling.setdefault(address, Cancel())
        cancel.requests += 1
        try:
            yield cancel
        finally:
            cancel.requests -= 1
            if not cancel.requests:
                del self._canceling[address]
                cancel.is_over.set()

    def forget(self, address: Address) -> None:
        """Note that the end of a task is stored, or that it waits for a message."""
        left = self._executing.pop(address, 1) - 1
        if left:
            self._executing[address] = left

    async def stop(self, address: Address, asked: Asked, *, wait: float | None) -> BulkStop:
        """Stop the runs of a task, wherever they are executed; one that has not begun is born stopped."""
        return await self.supervisor.stop(
            key=key_of(self.name, address),
            mode=asked.mode,
            reason=asked.reason,
            actor=address.owner,
            grace=asked.grace,
            owner=address.owner,
            wait=wait,
            if_unknown_hold=True,
        )

    async def seal(self, task: Task, context: ServerCallContext) -> None:
        """Do what has to be done before a task that waits for a message is canceled."""

    def reader_left(self, address: Address) -> None:
        """Stop a task whose last reader has left."""
        reason = Reason.of("the client left", kind=ReasonKind.DISCONNECT)
        key = key_of(self.name, address)
        self._soon(self.supervisor.stop(key=key, mode=self.mode, reason=reason, if_unknown_hold=False))

    # One run

    async def _has_ended(self, context: RequestContext) -> bool:
        """Return whether the task of a message has ended; waits for the cancels that are being answered."""
        state = SUBMITTED if context.current_task is None else context.current_task.status.state
        if state == SUBMITTED:
            return False  # it has no run yet: a cancel waits for the first, which is born stopped
        if state in TERMINAL:
            return True
        while (cancel := self._canceling.get(Address.of(context.call_context, ids_of(context)[0]))) is not None:
            await cancel.is_over.wait()
            if cancel.has_ended:
                return True
        return False

    async def _run(self, context: RequestContext, fence: Fence) -> bool:
        """Execute a message, and return whether the task has ended with it."""
        task_id, context_id = ids_of(context)
        address = Address.of(context.call_context, task_id)
        options = StartOptions(
            name=self.name,
            key=key_of(self.name, address),
            owner=address.owner,
            labels={"a2a.task": short(task_id), "a2a.context": short(context_id)},
            policy=self.policy,
        )
        try:
            handle = await self._start(context, fence, options)
        except StoppableError as error:  # a hold, a shutdown, other arguments than the agent takes
            await fence.end(REJECTED, {}, str(error))
            return True
        context.call_context.state[RUN] = handle.id
        try:
            outcome = await self._awaited(handle, context, fence)
        except asyncio.CancelledError:  # by the SDK: it is closing, or another replica wrote the end
            reason = Reason.of("the A2A server ended the task", kind=ReasonKind.EXTERNAL)
            self._soon(handle.stop(Mode.IMMEDIATE, reason))
            raise
        if outcome.status in {Status.COMPLETED, Status.FAILED}:
            return await self._publish_own_end(outcome, fence)
        fence.shut()
        if not fence.has_replied:
            await fence.end(state_of(outcome.status), told(handle.id, outcome, await handle.receipt()))
        return not fence.has_replied

    def _soon(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class StoppableExecutor(RunExecutor):
    """Wraps an executor so that its tasks can be stopped: each message that it handles is a run.

    When a run is stopped, the executor's own ``cancel()`` is called too, for half a second at most; the outcome of the
    run decides the state of the task. Use it with ``StoppableRequestHandler``.
    """

    def __init__(
        self,
        inner: AgentExecutor,
        supervisor: Supervisor,
        *,
        name: str | None = None,
        policy: Policy = POLICY,
        mode: str = Mode.GRACEFUL,
    ) -> None:
        super().__init__(supervisor, name or type(inner).__name__, policy=policy, mode=mode)
        self.inner = inner
        self._contexts: dict[str, RequestContext] = {}  # of the local runs that were not stopped
        self._listener: Listener | None = None

    async def _start(self, context: RequestContext, fence: Fence, options: StartOptions) -> RunHandle[Any]:
        self._listen()
        body = functools.partial(self.inner.execute, context, fence)
        handle: RunHandle[Any] = await self.supervisor.start(body, **options)
        self._contexts[handle.id] = context
        return handle

    async def _awaited(self, handle: RunHandle[Any], context: RequestContext, fence: Fence) -> Outcome[Any]:
        try:
            outcome = await super()._awaited(handle, context, fence)
            if outcome.status in {Status.STOPPED, Status.LOST}:
                self._told(handle.id)  # the stop may become known here after the end
            return outcome
        finally:
            self._contexts.pop(handle.id, None)
            fence.shut()

    async def _publish_own_end(self, outcome: Outcome[Any], fence: Fence) -> bool:
        is_ended = await fence.release()
        if outcome.error is not None:
            raise outcome.error
        return is_ended

    # The executor's own cancel()

    def _listen(self) -> None:
        # Not with on_stop(): a run with such a hook is not blind, and would get the whole grace.
        if self._listener is None or not self._listener.is_open:
            loop = asyncio.get_running_loop()

            def call(event: TreeEvent) -> None:
                if event.data.get("status") == Status.STOPPING and event.run_id in self._contexts:
                    loop.call_soon_threadsafe(self._told, event.run_id)

            self._listener = self.supervisor.listen(call, types=(EventType.STATUS,))

    def _told(self, run_id: str) -> None:
        context = self._contexts.pop(run_id, None)
        if context is not None:
            self._soon(self._call_cancel(context))

    async def _call_cancel(self, context: RequestContext) -> None:
        with contextlib.suppress(Exception):  # most raise "not supported"
            async with asyncio.timeout(_HOOK_SECONDS):
                await self.inner.cancel(context, Absorbing())


def ids_of(context: RequestContext) -> tuple[str, str]:
    """Return the ids of the task and of its context; a follow-up belongs to the context that the task has."""
    current = context.current_task
    context_id = current.context_id if current is not None else context.context_id
    return context.task_id or "", context_id or ""

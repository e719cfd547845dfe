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
from a2a.types import Part, Task, TaskState, TaskStatus, TaskStatusUpdateEvent

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
from stoppable.adapters.a2a.task_states import (
    CANCELED,
    FACTS,
    REJECTED,
    RUN,
    SUBMITTED,
    TERMINAL,
    Address,
    CancelOptions,
    is_reply,
    key_of,
    mark_begun,
    short,
    state_of,
    stop_facts,
)
from stoppable.records import TreeEvent
from stoppable.supervisor import BulkStop, Listener, StartOptions, Supervisor

POLICY = Policy(grace=2.0, interrupt=0.25, cancel=1.0, kill=0.5, blind_grace=0.0)
"""Four seconds in total, so that a client with a timeout of five sees the end; a blind run is cancelled at once."""

_SOURCE = "a2a"
_HOOK_SECONDS = 0.5


class EndHoldingQueue(EventQueue):
    """Passes events on, but holds a terminal one until the run has its status, so that both agree.

    Everything after a terminal event, or after the run, is dropped.
    """

    def __init__(self, queue: EventQueue, task_id: str, context_id: str, *, has_task: bool) -> None:
        self._queue, self._task_id, self._context_id = queue, task_id, context_id
        self._has_task = has_task
        self._is_shut = False
        self.has_replied: bool = False
        """Whether it answered with a message. That is not a task and cannot be canceled."""
        self.held_end: Task | TaskStatusUpdateEvent | None = None

    async def enqueue_event(self, event: Any) -> None:
        """Pass an event on, hold it, or drop it."""
        if self._is_shut or self.held_end is not None:
            return
        if isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state in TERMINAL:
            self.held_end = event
            return
        self._has_task |= isinstance(event, Task)
        self.has_replied |= is_reply(event)
        await self._queue.enqueue_event(event)

    def shut(self) -> None:
        """Drop everything from now on: the run is over."""
        self._is_shut = True

    async def release(self) -> bool:
        """Publish the terminal event that was held, and return whether there was one."""
        if self.held_end is None:
            return False
        await self._queue.enqueue_event(self.held_end)
        return True

    async def end(self, state: TaskState, metadata: dict[str, Any], message: str | None = None) -> None:
        """Publish the end of the task; uses the executor's own event if that has the same state."""
        if not self._has_task:  # the SDK takes no status before the task
            status = TaskStatus(state=SUBMITTED)
            await self._queue.enqueue_event(Task(id=self._task_id, context_id=self._context_id, status=status))
        updater = TaskUpdater(self._queue, self._task_id, self._context_id)
        text_message = updater.new_agent_message([Part(text=message)]) if message else self._held_message(state)
        await updater.update_status(state, message=text_message, metadata=metadata)

    def _held_message(self, state: TaskState) -> Any:
        end = self.held_end
        return end.status.message if end and end.status.state == state and end.status.HasField("message") else None


class DiscardingQueue(EventQueue):
    """Drops every event: what an executor's ``cancel()`` publishes may not be true for its run."""

    async def enqueue_event(self, event: Any) -> None:
        """Drop it."""


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
    async def _start(self, context: RequestContext, queue: EndHoldingQueue, options: StartOptions) -> RunHandle[Any]:
        """Start the run of a message; a StoppableError means that the task is rejected."""

    async def _wait_for_outcome(
        self,
        handle: RunHandle[Any],
        context: RequestContext,  # noqa: ARG002 - for those who override it
        queue: EndHoldingQueue,  # noqa: ARG002 - like the context
    ) -> Outcome[Any]:
        """Wait for the end of a run."""
        return await handle.outcome()

    @abstractmethod
    async def _publish_own_end(self, outcome: Outcome[Any], queue: EndHoldingQueue) -> bool:
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
        queue = EndHoldingQueue(event_queue, task_id, context_id, has_task=context.current_task is not None)
        address = Address.of(context.call_context, task_id)
        self._executing[address] = self._executing.get(address, 0) + 1
        is_ended = False
        try:
            is_ended = await self._run(context, queue)
        finally:
            queue.shut()
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

    async def stop(self, address: Address, options: CancelOptions, *, wait: float | None) -> BulkStop:
        """Stop the runs of a task, wherever they are executed; one that has not begun is born stopped."""
        return await self.supervisor.stop(
            key=key_of(self.name, address),
            mode=options.mode,
            reason=Reason.of(options.reason, source=_SOURCE),
            actor=address.owner,
            grace=options.grace,
            owner=address.owner,
            wait=wait,
            if_unknown="wait",
        )

    async def seal(self, task: Task, context: ServerCallContext) -> None:
        """Do what has to be done before a task that waits for a message is canceled."""

    def reader_left(self, address: Address) -> None:
        """Stop a task whose last reader has left."""
        reason = Reason.of("the client left", kind=ReasonKind.DISCONNECT, source=_SOURCE)
        key = key_of(self.name, address)
        self._soon(self.supervisor.stop(key=key, mode=self.mode, reason=reason, if_unknown="ignore"))

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

    async def _run(self, context: RequestContext, queue: EndHoldingQueue) -> bool:
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
            handle = await self._start(context, queue, options)
        except StoppableError as error:  # a hold, a shutdown, other arguments than the agent takes
            await queue.end(REJECTED, {}, str(error))
            return True
        context.call_context.state[RUN] = handle.id
        try:
            outcome = await self._wait_for_outcome(handle, context, queue)
        except asyncio.CancelledError:  # by the SDK: it is closing, or another replica wrote the end
            reason = Reason.of("the A2A server ended the task", kind=ReasonKind.EXTERNAL)
            self._soon(handle.stop(Mode.IMMEDIATE, reason))
            raise
        if outcome.status in {Status.COMPLETED, Status.FAILED}:
            return await self._publish_own_end(outcome, queue)
        queue.shut()
        if not queue.has_replied:
            await queue.end(state_of(outcome.status), stop_facts(handle.id, outcome, await handle.receipt()))
        return not queue.has_replied

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

    async def _start(self, context: RequestContext, queue: EndHoldingQueue, options: StartOptions) -> RunHandle[Any]:
        self._listen()
        body = functools.partial(self.inner.execute, context, queue)
        handle: RunHandle[Any] = await self.supervisor.start(body, **options)
        self._contexts[handle.id] = context
        return handle

    async def _wait_for_outcome(
        self, handle: RunHandle[Any], context: RequestContext, queue: EndHoldingQueue
    ) -> Outcome[Any]:
        try:
            outcome = await super()._wait_for_outcome(handle, context, queue)
            if outcome.status in {Status.STOPPED, Status.LOST}:
                self._cancel_inner(handle.id)  # the stop may become known here after the end
            return outcome
        finally:
            self._contexts.pop(handle.id, None)
            queue.shut()

    async def _publish_own_end(self, outcome: Outcome[Any], queue: EndHoldingQueue) -> bool:
        is_ended = await queue.release()
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
                    loop.call_soon_threadsafe(self._cancel_inner, event.run_id)

            self._listener = self.supervisor.listen(call, types=(EventType.STATUS,))

    def _cancel_inner(self, run_id: str) -> None:
        context = self._contexts.pop(run_id, None)
        if context is not None:
            self._soon(self._call_cancel(context))

    async def _call_cancel(self, context: RequestContext) -> None:
        with contextlib.suppress(Exception):  # most raise "not supported"
            async with asyncio.timeout(_HOOK_SECONDS):
                await self.inner.cancel(context, DiscardingQueue())


def ids_of(context: RequestContext) -> tuple[str, str]:
    """Return the ids of the task and of its context; a follow-up belongs to the context that the task has."""
    current = context.current_task
    context_id = current.context_id if current is not None else context.context_id
    return context.task_id or "", context_id or ""

"""The SDK's request handler, with a cancel that is a stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Literal

from a2a.server.cluster.task_store import ConcurrentTaskModificationError, StoredTask, VersionedTaskStore
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler, validate_request_params
from a2a.server.tasks import TaskStore
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import TaskNotFoundError

from stoppable import Filter, InvalidArgument, Status
from stoppable.adapters.a2a.executor import RunExecutor
from stoppable.adapters.a2a.task_states import (
    CANCELED,
    FACTS,
    FAILED,
    INTERRUPTED,
    METADATA,
    TERMINAL,
    Address,
    CancelOptions,
    Ends,
    ended_before,
    has_begun,
    id_of,
    keep_first_ends,
    key_of,
    not_cancelable,
    owner_of,
    parked_stop_facts,
)

_logger = logging.getLogger("stoppable.adapters.a2a")

OnDisconnect = Literal["keep", "stop"]

_BUSY_SECONDS = 10.0  # the ladder waits for an event loop that is busy
_SETTLE_SECONDS = 1.0  # from the end of a run to the end of its task in the store
_STORE_SECONDS = 30.0  # the same for a run of this process, whose end is on its way to the store
_MOST_SECONDS = 60.0  # how long a cancel may take
_CLOSE_SECONDS = 10.0  # only a store that does not answer takes so long
_WATCH_SECONDS = 0.5  # between two reads of a task whose events another replica may have published


class StoppableRequestHandler(DefaultRequestHandler):
    """Answers a cancel with the outcome of the run: canceled only if every part of the run is known to have ended.

    It takes what ``DefaultRequestHandler`` takes. ``on_disconnect="stop"`` stops a task whose last streaming client
    has left; otherwise it goes on. Call ``close()`` when the server ends: it stops the remaining tasks and waits for
    their terminal states.
    """

    def __init__(
        self,
        agent_executor: RunExecutor,
        task_store: TaskStore | VersionedTaskStore,
        agent_card: AgentCard,
        *,
        on_disconnect: OnDisconnect = "keep",
        **more: Any,
    ) -> None:
        if on_disconnect not in {"keep", "stop"}:
            raise InvalidArgument(f"unknown on_disconnect {on_disconnect!r}: use keep or stop")
        self._ends = Ends(agent_executor.forget)
        self._executor, self._on_disconnect = agent_executor, on_disconnect
        self._parked: dict[Address, asyncio.Task[Task | None]] = {}
        self._readers: dict[Address, int] = {}
        super().__init__(
            agent_executor=agent_executor,
            task_store=keep_first_ends(task_store, self._ends),
            agent_card=agent_card,
            **more,
        )

    async def close(self) -> None:
        """Stop the tasks that are executed here, wait until their ends are stored, and end the SDK's own tasks.

        It drains the supervisor, which accepts no new runs after that.
        """
        await self._executor.supervisor.drain()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self._executor.tasks and time.monotonic() < deadline:
            await self._ends.wait(self._executor.tasks[0], deadline - time.monotonic())
        await self.aclose()

    # Cancel

    @validate_request_params
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        """Stop the run of a task, and return the task once it is canceled.

        Canceling a canceled task returns that task. If the task ended in another way, TaskNotCancelableError says how.
        A task that is still working when the time for a cancel is over is returned as it is.
        """
        metadata = params.metadata if params.HasField("metadata") else None
        options = CancelOptions.of(metadata, self._executor.mode, self._executor.policy.grace)
        with self._executor.canceling(Address.of(context, params.id)) as cancel:
            task = await self._task(params.id, context)
            if task.status.state not in TERMINAL:
                task = await self._stop(params, context, options)
            cancel.has_ended |= task.status.state in TERMINAL
        if task.status.state in TERMINAL - {CANCELED}:
            raise not_cancelable(task)
        return task

    async def _stop(self, params: CancelTaskRequest, context: ServerCallContext, options: CancelOptions) -> Task:
        total = self._executor.policy.total(options.mode, options.grace)
        wait = _MOST_SECONDS if math.isinf(total) else min(total + _BUSY_SECONDS + _SETTLE_SECONDS, _MOST_SECONDS)
        address, deadline = Address.of(context, params.id), time.monotonic() + wait
        task, is_first = await self._task(params.id, context), True
        while True:
            left = max(0.0, deadline - time.monotonic())
            receipts = await self._executor.stop(address, options, wait=left)
            if any(not receipt.final for receipt in receipts):
                return await self._task(params.id, context)
            if is_first or receipts:
                task, is_first = await self._wait_until_settled(params.id, context), False
            if task.status.state in TERMINAL:
                return task
            if not receipts:  # the stop waits for the next run, which is born stopped
                break
            # The run ended in another way before it noticed the stop, and another replica may have begun the next one.
        if task.status.state not in INTERRUPTED and await self._is_lost(address):
            return await self._write_lost(task, context)
        return await self._cancel_parked(params, context, options)

    async def _task(self, task_id: str, context: ServerCallContext) -> Task:
        stored = await self.task_store.get(task_id, context)
        if stored is None:
            raise TaskNotFoundError
        return stored.task if isinstance(stored, StoredTask) else stored

    async def _wait_until_settled(self, task_id: str, context: ServerCallContext) -> Task:
        """Return a task once it has ended or waits for a message; or as it is, if that takes too long."""
        address, started = Address.of(context, task_id), time.monotonic()
        while True:
            is_here = self._executor.is_executing(address)
            task = await self._task(task_id, context)
            is_parked = task.status.state in INTERRUPTED and not is_here
            left = started + (_STORE_SECONDS if is_here else _SETTLE_SECONDS) - time.monotonic()
            if task.status.state in TERMINAL or is_parked or left <= 0:
                return task
            await self._ends.wait(address, left)

    async def _cancel_parked(
        self, params: CancelTaskRequest, context: ServerCallContext, options: CancelOptions
    ) -> Task:
        """Cancel a task without a live run with the SDK's own cancel, of which only one may run at a time."""
        address = Address.of(context, params.id)
        flight = self._parked.get(address)
        if flight is None:
            flight = self._parked[address] = asyncio.create_task(self._cancel_without_run(params, context, options))
            flight.add_done_callback(lambda _: self._parked.pop(address, None))
        await asyncio.wait({flight})  # a caller that leaves does not cancel it
        return flight.result() or await self._task(params.id, context)

    async def _cancel_without_run(
        self, params: CancelTaskRequest, context: ServerCallContext, options: CancelOptions
    ) -> Task | None:
        task = await self._task(params.id, context)
        await self._executor.seal(task, context)
        # The executor publishes the facts with the end; if no task of the SDK is left here, that is written without it.
        facts = context.state[FACTS] = parked_stop_facts(options, owner_of(context))
        task.metadata.update(facts)
        with contextlib.suppress(ConcurrentTaskModificationError):
            await self._save(task, context)
        return await super().on_cancel_task(params, context)

    async def _is_lost(self, address: Address) -> bool:
        """Return whether the last run of a task may still be running, and the process that executed it is gone."""
        page = await self._executor.supervisor.list(
            Filter(key=key_of(self._executor.name, address), roots=True), limit=1
        )
        return bool(page.runs) and page.runs[0].status is Status.LOST

    async def _write_lost(self, task: Task, context: ServerCallContext) -> Task:
        """Store the end of a task whose process is gone."""
        lost_task = Task()
        lost_task.CopyFrom(task)
        lost_task.status.state = FAILED
        lost_task.metadata.update({METADATA: {"status": str(Status.LOST)}})
        await self._save(lost_task, context)
        return await self._task(task.id, context)

    async def _save(self, task: Task, context: ServerCallContext) -> None:
        """Store a task as it is."""
        if isinstance(self.task_store, VersionedTaskStore):
            stored = await self.task_store.get(task.id, context)
            if stored is not None:
                await self.task_store.save(
                    task, event=None, prev=stored.task, prev_version=stored.version, context=context
                )
        else:
            await self.task_store.save(task, context)

    # Messages

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Message | Task:
        """Handle a message; one that was queued behind the run with which its task ended is refused."""
        result = await super().on_message_send(params, context)
        if isinstance(result, Task) and result.status.state in TERMINAL and not has_begun(context):
            raise ended_before(result)
        return result

    async def _refuse_queued(
        self, events: AsyncGenerator[Any, None], task_id: str, context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        """Yield events, and raise if the message that they answer was queued behind the run which ended its task."""
        async with contextlib.aclosing(events):
            async for event in events:
                yield event
        if task_id and not has_begun(context):
            task = await self._task(task_id, context)
            if task.status.state in TERMINAL:
                raise ended_before(task)

    # Readers that leave

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        """Handle a message, and yield its events."""
        answers = self._refuse_queued(super().on_message_send_stream(params, context), params.message.task_id, context)
        async with contextlib.aclosing(self._read(answers, context)) as events:
            async for event in events:
                yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        """Yield the events of a task from now on."""
        complete = self._with_stored_end(super().on_subscribe_to_task(params, context), params.id, context)
        async with contextlib.aclosing(self._read(complete, context)) as events:
            async for event in events:
                yield event

    async def _with_stored_end(
        self, events: AsyncGenerator[Any, None], task_id: str, context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        """Yield events, and finally the end that another replica has stored, which is not published here."""
        next_event: asyncio.Task[Any] | None = None
        is_ended = False
        try:
            while True:
                next_event = next_event or asyncio.create_task(_next(events))
                await asyncio.wait({next_event}, timeout=_WATCH_SECONDS)
                if next_event.done():
                    event, next_event = next_event.result(), None
                    if event is None:
                        return
                    yield event
                elif not self._executor.is_executing(Address.of(context, task_id)):
                    task = await self._task(task_id, context)
                    if is_ended:  # at the read before too: no event of it is under way
                        yield TaskStatusUpdateEvent(task_id=task_id, context_id=task.context_id, status=task.status)
                        return
                    is_ended = task.status.state in TERMINAL
        finally:
            if next_event is not None:
                next_event.cancel()
                await asyncio.wait({next_event})
            await events.aclose()

    async def _read(self, events: AsyncGenerator[Any, None], context: ServerCallContext) -> AsyncGenerator[Any, None]:
        address: Address | None = None
        try:
            async with contextlib.aclosing(read_ahead(events)) as ahead:
                async for event in ahead:
                    if address is None and (task_id := id_of(event)) is not None:
                        address = Address.of(context, task_id)
                        self._readers[address] = self._readers.get(address, 0) + 1
                    yield event
        finally:
            # Checked here: the SDK ends the stream of a cancelled reader like any other.
            if address is not None:
                self._leave(address)

    def _leave(self, address: Address) -> None:
        left = self._readers.pop(address) - 1
        if left:
            self._readers[address] = left
        elif self._on_disconnect == "stop" and self._executor.is_executing(address):
            self._executor.reader_left(address)


async def _next(events: AsyncGenerator[Any, None]) -> Any:
    """Return the next event, None after the last; StopAsyncIteration cannot leave a task."""
    return await anext(events, None)


_MOST_EVENTS, _MOST_BYTES = 1_024, 4_000_000


async def read_ahead(
    events: AsyncGenerator[Any, None], *, most_events: int = _MOST_EVENTS, most_bytes: int = _MOST_BYTES
) -> AsyncGenerator[Any, None]:
    """Yield events; take them from the SDK as they come, even while the reader is not ready for them.

    The SDK keeps a copy of the whole task with each event that waits for a reader, and up to 1,024 of them. Here the
    events alone are kept. A reader that falls too far behind gets what was kept, then the end of its stream; it may
    subscribe again.
    """
    unread = _UnreadEvents(most_events, most_bytes)
    filler = asyncio.create_task(unread.fill(events))
    try:
        while await unread.has_more():
            yield unread.take()
    finally:
        filler.cancel()
        await asyncio.wait({filler})
    if unread.error is not None:
        raise unread.error


class _UnreadEvents:
    """The events that a reader has not taken yet."""

    def __init__(self, most_events: int, most_bytes: int) -> None:
        self._most_events, self._most_bytes = most_events, most_bytes
        self._events: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._news, self._is_over = asyncio.Event(), False
        self.error: Exception | None = None

    async def fill(self, events: AsyncGenerator[Any, None]) -> None:
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    if not self._add(event):
                        _logger.warning("a stream ends: its reader is %d events behind", len(self._events))
                        return
        except Exception as error:
            self.error = error
        finally:
            self._is_over = True
            self._news.set()

    def _add(self, event: Any) -> bool:
        """Keep an event if there is room for it, and return whether there was; a single one may be of any size."""
        size = event.ByteSize()
        if self._events and (len(self._events) >= self._most_events or self._bytes + size > self._most_bytes):
            return False
        self._events.append((event, size))
        self._bytes += size
        self._news.set()
        return True

    async def has_more(self) -> bool:
        while not self._events and not self._is_over:
            self._news.clear()
            await self._news.wait()
        return bool(self._events)

    def take(self) -> Any:
        event, size = self._events.popleft()
        self._bytes -= size
        return event

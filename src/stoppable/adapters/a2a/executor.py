"""Any AgentExecutor as one whose tasks can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Coroutine
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater

from stoppable import EventType, Mode, Outcome, Policy, Reason, ReasonKind, RunHeld, Status
from stoppable.adapters.a2a.fence import Absorbing, Fence
from stoppable.adapters.a2a.states import REJECTED, Asked, key_of, owner_of, short, state_of, told
from stoppable.records import TreeEvent
from stoppable.supervisor import BulkStop, Listener, Supervisor

POLICY = Policy(grace=2.0, interrupt=0.25, cancel=1.0, kill=0.5, blind_grace=0.0)
"""Four seconds in all, so that a client with a timeout of five still hears the end; a run that never looks at its stop
is not waited for."""

_HOOK_SECONDS = 0.5


class StoppableExecutor(AgentExecutor):
    """Makes every task of an executor one that can be stopped: each message that it handles is a run.

    The runs of a task have its key (``key(task_id)``), so that a stop finds them on any replica. The executor's own
    ``cancel()`` is called when a run is told to stop, for half a second at most, and decides nothing: the state of the
    task is what became of the run. Use it with ``StoppableRequestHandler``.
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
        self.inner, self.supervisor = inner, supervisor
        self.name = name or type(inner).__name__
        self.policy, self.mode = policy, Mode.of(mode)
        self._executing: dict[str, int] = {}  # runs per task, until the task has its end or waits for a message
        self._contexts: dict[str, RequestContext] = {}  # of the runs that are executed here
        self._listener: Listener | None = None
        self._background: set[asyncio.Task[Any]] = set()  # asyncio itself keeps only weak references

    # What the SDK calls

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Handle a message as a run, and publish the end of the task once the run has its own."""
        task_id, context_id = _ids(context)
        fence = Fence(event_queue, task_id, context_id, has_task=context.current_task is not None)
        self._executing[task_id] = self._executing.get(task_id, 0) + 1
        is_ended = False
        try:
            is_ended = await self._run(context, fence)
        finally:
            fence.shut()
            if not is_ended:  # else the store says so, once it has the end
                self.forget(task_id)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """End a task that waits for a message: no run of it is live."""
        await self._call_cancel(context)
        await TaskUpdater(event_queue, *_ids(context)).cancel()

    # What the request handler calls

    def key(self, task_id: str) -> str:
        """Return the address of a task's runs."""
        return key_of(self.name, task_id)

    def is_executing(self, task_id: str) -> bool:
        """Return whether this process has a run of a task whose end is not yet in the task store."""
        return task_id in self._executing

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks with such a run."""
        return tuple(self._executing)

    def forget(self, task_id: str) -> None:
        """Note that the end of a task is stored, or that it waits for a message."""
        left = self._executing.pop(task_id, 1) - 1
        if left:
            self._executing[task_id] = left

    async def stop(
        self, task_id: str, asked: Asked, *, actor: str | None, owner: str | None, wait: float | None
    ) -> BulkStop:
        """Stop the runs of a task, wherever they are executed; one that has not begun is born stopped."""
        return await self.supervisor.stop(
            key=self.key(task_id),
            mode=asked.mode,
            reason=asked.reason,
            actor=actor,
            grace=asked.grace,
            owner=owner,
            wait=wait,
            if_unknown_hold=True,
        )

    def reader_left(self, task_id: str) -> None:
        """Stop a task whose last reader has left."""
        reason = Reason.of("the client left", kind=ReasonKind.DISCONNECT)
        self._soon(self.supervisor.stop(key=self.key(task_id), mode=self.mode, reason=reason, if_unknown_hold=False))

    # One run

    async def _run(self, context: RequestContext, fence: Fence) -> bool:
        """Execute a message, and return whether the task has ended with it."""
        task_id, context_id = _ids(context)
        self._listen()
        try:
            handle = await self.supervisor.start(
                functools.partial(self._body, context, fence),
                name=self.name,
                key=self.key(task_id),
                owner=owner_of(context.call_context),
                labels={"a2a.task": short(task_id), "a2a.context": short(context_id)},
                policy=self.policy,
            )
        except RunHeld as error:
            await fence.end(REJECTED, {}, str(error))
            return True
        self._contexts[handle.id] = context
        try:
            outcome: Outcome[Any] = await handle.outcome()
        except asyncio.CancelledError:  # the SDK ends its producer: it is closed, or another replica wrote the end
            reason = Reason.of("the A2A server ended the task", kind=ReasonKind.EXTERNAL)
            self._soon(handle.stop(Mode.IMMEDIATE, reason))
            raise
        finally:
            self._contexts.pop(handle.id, None)
            fence.shut()
        if outcome.status in {Status.COMPLETED, Status.FAILED}:
            return await _publish_own_end(outcome, fence)
        if not fence.has_replied:
            await fence.end(state_of(outcome.status), told(handle.id, outcome, await handle.receipt()))
        return not fence.has_replied

    async def _body(self, context: RequestContext, fence: Fence) -> None:
        await self.inner.execute(context, fence)

    # The executor's own cancel()

    def _listen(self) -> None:
        # Not by on_stop(), which would count as a look at the stop: a run that never looks is not waited for.
        if self._listener is None or not self._listener.is_open:
            loop = asyncio.get_running_loop()

            def call(event: TreeEvent) -> None:
                if event.data.get("status") == Status.STOPPING and event.run_id in self._contexts:
                    loop.call_soon_threadsafe(self._told, event.run_id)

            self._listener = self.supervisor.listen(call, types=(EventType.STATUS,))

    def _told(self, run_id: str) -> None:
        context = self._contexts.get(run_id)
        if context is not None:
            self._soon(self._call_cancel(context))

    async def _call_cancel(self, context: RequestContext) -> None:
        with contextlib.suppress(Exception):  # most raise "not supported"
            async with asyncio.timeout(_HOOK_SECONDS):
                await self.inner.cancel(context, Absorbing())

    def _soon(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _publish_own_end(outcome: Outcome[Any], fence: Fence) -> bool:
    """Publish what the executor itself said of the end, and raise what it raised."""
    is_ended = await fence.release()
    if outcome.error is not None:
        raise outcome.error
    return is_ended


def _ids(context: RequestContext) -> tuple[str, str]:
    current = context.current_task
    context_id = current.context_id if current is not None else context.context_id
    return context.task_id or "", context_id or ""

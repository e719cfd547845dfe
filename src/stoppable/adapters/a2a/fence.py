"""What an executor writes its events to."""

from __future__ import annotations

from typing import Any

from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part, Task, TaskState, TaskStatus, TaskStatusUpdateEvent

from stoppable.adapters.a2a.states import SUBMITTED, TERMINAL, is_reply


class Fence(EventQueue):
    """Passes events on, but holds a terminal one until the run has its status, so that both agree.

    Everything after a terminal event, or after the run, is dropped.
    """

    def __init__(self, queue: EventQueue, task_id: str, context_id: str, *, has_task: bool) -> None:
        self._queue, self._task_id, self._context_id = queue, task_id, context_id
        self._has_task = has_task
        self._is_shut = False
        self.has_replied: bool = False
        """Whether it answered with a message. That is not a task and cannot be canceled."""
        self.held: Task | TaskStatusUpdateEvent | None = None

    async def enqueue_event(self, event: Any) -> None:
        """Pass an event on, hold it, or drop it."""
        if self._is_shut or self.held is not None:
            return
        if isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state in TERMINAL:
            self.held = event
            return
        self._has_task |= isinstance(event, Task)
        self.has_replied |= is_reply(event)
        await self._queue.enqueue_event(event)

    def shut(self) -> None:
        """Drop everything from now on: the run is over."""
        self._is_shut = True

    async def release(self) -> bool:
        """Publish the terminal event that was held, and return whether there was one."""
        if self.held is None:
            return False
        await self._queue.enqueue_event(self.held)
        return True

    async def end(self, state: TaskState, metadata: dict[str, Any], message: str | None = None) -> None:
        """Publish the end of the task; uses the executor's own event if that has the same state."""
        if not self._has_task:  # the SDK takes no status before the task
            status = TaskStatus(state=SUBMITTED)
            await self._queue.enqueue_event(Task(id=self._task_id, context_id=self._context_id, status=status))
        updater = TaskUpdater(self._queue, self._task_id, self._context_id)
        said = updater.new_agent_message([Part(text=message)]) if message else self._said(state)
        await updater.update_status(state, message=said, metadata=metadata)

    def _said(self, state: TaskState) -> Any:
        held = self.held
        return held.status.message if held and held.status.state == state and held.status.HasField("message") else None


class Absorbing(EventQueue):
    """Drops every event: what an executor's ``cancel()`` publishes may not be true for its run."""

    async def enqueue_event(self, event: Any) -> None:
        """Drop it."""

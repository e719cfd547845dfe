"""Task stores in which the first terminal state of a task stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from a2a.server.cluster.task_store import StoredTask, VersionedTaskStore
from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore
from a2a.types import ListTasksRequest, ListTasksResponse, Task

from stoppable.adapters.a2a.states import TERMINAL, Address

_LOOK_SECONDS = 0.05  # another replica may have written it, without a notification


class Ends:
    """Notifies local waiters that a task has reached its terminal state."""

    def __init__(self, ended: Callable[[Address], None]) -> None:
        self._ended = ended
        self._waiting: dict[Address, asyncio.Event] = {}

    def saved(self, task: Task, context: ServerCallContext) -> None:
        """Note a state that was stored."""
        if task.status.state in TERMINAL:
            address = Address.of(context, task.id)
            self._ended(address)
            if (news := self._waiting.pop(address, None)) is not None:
                news.set()

    async def wait(self, address: Address, seconds: float) -> None:
        """Wait until a task has its terminal state, or it is time to read the store again."""
        news = self._waiting.setdefault(address, asyncio.Event())
        try:
            async with asyncio.timeout(min(seconds, _LOOK_SECONDS)):
                await news.wait()
        except TimeoutError:
            pass


class FirstTerminalStays(TaskStore):
    """A task store that refuses to change a terminal state."""

    def __init__(self, store: TaskStore, ends: Ends) -> None:
        self._store, self._ends = store, ends
        self._locks: dict[Address, asyncio.Lock] = {}

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Save a task, unless it has ended in another state."""
        address = Address.of(context, task.id)
        async with self._locks.setdefault(address, asyncio.Lock()):
            known = await self._store.get(task.id, context)
            if known is not None and known.status.state in TERMINAL and known.status.state != task.status.state:
                return
            await self._store.save(task, context)
        if task.status.state in TERMINAL:
            self._locks.pop(address, None)
        self._ends.saved(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task."""
        return await self._store.get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return tasks."""
        return await self._store.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Forget a task."""
        await self._store.delete(task_id, context)
        self._locks.pop(Address.of(context, task_id), None)


class Versioned(VersionedTaskStore):
    """A versioned task store, which refuses late writes."""

    def __init__(self, store: VersionedTaskStore, ends: Ends) -> None:
        self._store, self._ends = store, ends

    async def save(self, task: Task, *, context: ServerCallContext, **more: Any) -> Any:
        """Keep a task."""
        version = await self._store.save(task, context=context, **more)
        self._ends.saved(task, context)
        return version

    async def get(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        """Return a task with its version."""
        return await self._store.get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return tasks."""
        return await self._store.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Forget a task."""
        await self._store.delete(task_id, context)


def guarded(store: TaskStore | VersionedTaskStore, ends: Ends) -> TaskStore | VersionedTaskStore:
    """Return a store in which the first terminal state stays."""
    return Versioned(store, ends) if isinstance(store, VersionedTaskStore) else FirstTerminalStays(store, ends)

"""The tasks of a server's agents: in memory while they are executed, afterwards what the store knows of their runs."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore
from a2a.types import Artifact, ListTasksRequest, ListTasksResponse, Message, Part, Role, Task, TaskState, TaskStatus
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict

from stoppable import RunNotFound, Status
from stoppable.adapters.a2a.states import CANCELED, FAILED, SUBMITTED, TERMINAL, Address, key_of, told
from stoppable.adapters.a2a.wire import plain
from stoppable.records import Filter, RunRecord, RunSummary
from stoppable.supervisor import Supervisor

_WITHOUT_RUN = 1_000  # ended tasks that are remembered though no run tells about them: rejected ones, above all
_LISTED = 10_000  # the newest runs are looked through for a list
_PAGE = 1_000

_STATES = {
    Status.PENDING: SUBMITTED,
    Status.COMPLETED: TaskState.TASK_STATE_COMPLETED,
    Status.FAILED: FAILED,
    Status.STOPPED: CANCELED,
    Status.LOST: FAILED,
}


class RunTasks(TaskStore):
    """Keeps no ended task in memory if the store has its run, and forgets it with that run.

    A task that is read from its run has no history, and what was partial is one part.
    """

    def __init__(self, supervisor: Supervisor, agent: str) -> None:
        self._supervisor, self._agent = supervisor, agent
        self._live: dict[Address, Task] = {}
        self._without_run: OrderedDict[Address, Task] = OrderedDict()

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Keep a task; one that has ended is left to the store, if that says the same about it."""
        address, kept = Address.of(context, task.id), Task()
        kept.CopyFrom(task)
        if task.status.state not in TERMINAL:
            self._live[address] = kept
            return
        stored = await self._stored(address)
        if stored is None or stored.status.state != task.status.state:
            self._without_run[address] = kept
            while len(self._without_run) > _WITHOUT_RUN:
                self._without_run.popitem(last=False)
        self._live.pop(address, None)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task."""
        address = Address.of(context, task_id)
        return self._known(address) or await self._stored(address)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Forget a task; its run stays."""
        address = Address.of(context, task_id)
        self._live.pop(address, None)
        self._without_run.pop(address, None)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return tasks, the one that changed last first."""
        entries = {
            address: (_at(task), task.status.state, task.context_id)
            for kept in (self._without_run, self._live)
            for address, task in kept.items()
            if address.owner == Address.of(context, "").owner
        }
        async for address, run in self._runs(Address.of(context, "").owner):
            state = _STATES.get(run.status, TaskState.TASK_STATE_WORKING)
            entries.setdefault(address, (_changed_at(run), state, run.labels.get("a2a.context", "")))
        after = params.status_timestamp_after.ToNanoseconds() if params.HasField("status_timestamp_after") else 0
        wanted = sorted(
            (
                (at, address.task_id, address)
                for address, (at, state, of) in entries.items()
                if params.context_id in ("", of) and params.status in (0, state) and at >= after
            ),
            reverse=True,
        )
        start = 0 if not params.page_token else _start(params.page_token, wanted)
        size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        page = wanted[start : start + size]
        tasks = [self._known(address) or await self._stored(address) for _, _, address in page]
        return ListTasksResponse(
            tasks=[task for task in tasks if task is not None],
            next_page_token=f"{page[-1][0]}:{page[-1][1]}" if start + size < len(wanted) else "",
            total_size=len(wanted),
            page_size=size,
        )

    def _known(self, address: Address) -> Task | None:
        found = self._live.get(address) or self._without_run.get(address)
        if found is None:
            return None
        copied = Task()
        copied.CopyFrom(found)
        return copied

    # What the store knows

    async def _stored(self, address: Address) -> Task | None:
        key = key_of(self._agent, address)
        page = await self._supervisor.list(Filter(key=key, owner=address.owner, roots=True), limit=1)
        for run in page.runs:
            if run.owner == address.owner:
                try:
                    return task_of(await self._supervisor.get(run.id), address)
                except RunNotFound:  # forgotten meanwhile
                    return None
        return None

    async def _runs(self, owner: str | None) -> AsyncIterator[tuple[Address, RunSummary]]:
        """Yield the tasks of an owner with their newest runs."""
        prefix, cursor, seen = key_of(self._agent, Address(owner, "")), None, 0
        wanted = Filter(name=self._agent, owner=owner, roots=True)
        while seen < _LISTED:
            page = await self._supervisor.list(wanted, cursor=cursor, limit=_PAGE)
            for run in page.runs:
                if run.owner == owner and run.key is not None and run.key.startswith(prefix):
                    yield Address(owner, run.key.removeprefix(prefix)), run
            seen, cursor = seen + len(page.runs), page.cursor
            if cursor is None:
                return


def task_of(record: RunRecord, address: Address) -> Task:
    """Return a task as the record of its run tells about it."""
    state = _STATES.get(record.status, TaskState.TASK_STATE_WORKING)
    task = Task(id=address.task_id, context_id=record.labels.get("a2a.context", ""), status=TaskStatus(state=state))
    task.status.timestamp.FromNanoseconds(_changed_at(record))
    outcome = record.outcome
    if outcome is None:
        return task
    for name, value in (("partial", outcome.partial), ("result", outcome.result)):
        if value is not None and (name == "partial" or record.status is Status.COMPLETED):
            task.artifacts.append(Artifact(artifact_id=name, name=name, parts=[part_of(value)]))
    if record.status in {Status.STOPPED, Status.LOST}:
        task.metadata.update(told(record.id, outcome, record.receipt))
    elif outcome.error is not None:
        text = plain(f"{outcome.error.type}: {outcome.error.message}")
        message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_AGENT, parts=[Part(text=text)])
        message.task_id, message.context_id = task.id, task.context_id
        task.status.message.CopyFrom(message)
    return task


def part_of(value: Any) -> Part:
    """Return a value of an agent as a part of a message."""
    return Part(text=plain(value)) if isinstance(value, str) else ParseDict({"data": plain(value)}, Part())


def _changed_at(run: RunRecord | RunSummary) -> int:
    return int((run.ended_at or run.started_at or run.created_at) * 1e9)


def _at(task: Task) -> int:
    return int(task.status.timestamp.ToNanoseconds())


def _start(token: str, entries: list[tuple[int, str, Address]]) -> int:
    """Return where a page begins: after the task that its token names, which may be gone."""
    at, _, task_id = token.partition(":")
    if not at.isdecimal() or not task_id:
        raise InvalidParamsError(message="invalid page token")
    return sum(entry[:2] >= (int(at), task_id) for entry in entries)

"""Agents of stoppable as executors of A2A, and their tasks: in memory, and afterwards what the store knows of them."""

from __future__ import annotations

import inspect
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore, TaskUpdater
from a2a.types import Artifact, ListTasksRequest, ListTasksResponse, Message, Part, Role, Task, TaskState, TaskStatus
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.exceptions import HTTPException

from stoppable import EventType, InvalidArgument, Outcome, Policy, RunHandle, RunNotFound, Status, StoppableError
from stoppable.adapters.a2a.executor import POLICY, EndHoldingQueue, RunExecutor, ids_of
from stoppable.adapters.a2a.task_states import CANCELED, FAILED, SUBMITTED, TERMINAL, Address, key_of, stop_facts
from stoppable.adapters.a2a.wire import plain
from stoppable.records import Filter, RunRecord, RunSummary
from stoppable.server import Host
from stoppable.supervisor import StartOptions, Supervisor

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
        address, copied = Address.of(context, task.id), Task()
        copied.CopyFrom(task)
        if task.status.state not in TERMINAL:
            self._live[address] = copied
            return
        stored = await self._read_stored(address)
        if stored is None or stored.status.state != task.status.state:
            self._without_run[address] = copied
            while len(self._without_run) > _WITHOUT_RUN:
                self._without_run.popitem(last=False)
        self._live.pop(address, None)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task."""
        address = Address.of(context, task_id)
        return self._copy_in_memory(address) or await self._read_stored(address)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Forget a task; its run stays."""
        address = Address.of(context, task_id)
        self._live.pop(address, None)
        self._without_run.pop(address, None)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return tasks, the one that changed last first."""
        entries = {
            address: (_at(task), task.status.state, task.context_id)
            for tasks in (self._without_run, self._live)
            for address, task in tasks.items()
            if address.owner == Address.of(context, "").owner
        }
        async for address, run in self._runs(Address.of(context, "").owner):
            state = _STATES.get(run.status, TaskState.TASK_STATE_WORKING)
            entries.setdefault(address, (_changed_at(run), state, run.labels.get("a2a.context", "")))
        after = params.status_timestamp_after.ToNanoseconds() if params.HasField("status_timestamp_after") else 0
        matches = sorted(
            (
                (at, address.task_id, address)
                for address, (at, state, of) in entries.items()
                if params.context_id in ("", of) and params.status in (0, state) and at >= after
            ),
            reverse=True,
        )
        start = 0 if not params.page_token else _start(params.page_token, matches)
        size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        page = matches[start : start + size]
        tasks = [self._copy_in_memory(address) or await self._read_stored(address) for _, _, address in page]
        return ListTasksResponse(
            tasks=[task for task in tasks if task is not None],
            next_page_token=f"{page[-1][0]}:{page[-1][1]}" if start + size < len(matches) else "",
            total_size=len(matches),
            page_size=size,
        )

    def _copy_in_memory(self, address: Address) -> Task | None:
        task = self._live.get(address) or self._without_run.get(address)
        if task is None:
            return None
        copied = Task()
        copied.CopyFrom(task)
        return copied

    # What the store knows

    async def _read_stored(self, address: Address) -> Task | None:
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
        prefix, cursor, count = key_of(self._agent, Address(owner, "")), None, 0
        matching = Filter(agent=self._agent, owner=owner, roots=True)
        while count < _LISTED:
            page = await self._supervisor.list(matching, cursor=cursor, limit=_PAGE)
            for run in page.runs:
                if run.owner == owner and run.key is not None and run.key.startswith(prefix):
                    yield Address(owner, run.key.removeprefix(prefix)), run
            count, cursor = count + len(page.runs), page.cursor
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
        task.metadata.update(stop_facts(record.id, outcome, record.receipt))
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


COMPLETED = TaskState.TASK_STATE_COMPLETED


class AgentFunction(RunExecutor):
    """Handles a message as a run of an agent, on the event loop where the server runs agents.

    A JSON object in the message is the agent's keyword arguments, its text the only argument otherwise. Partials are
    chunks of the artifact ``partial``, what the agent returns is the artifact ``result``.
    """

    def __init__(self, agent: Callable[..., Any], host: Host, name: str, *, policy: Policy = POLICY) -> None:
        super().__init__(host.supervisor, name, policy=policy)
        self._agent, self._host = agent, host

    async def _start(self, context: RequestContext, queue: EndHoldingQueue, options: StartOptions) -> RunHandle[Any]:
        task_id, context_id = ids_of(context)
        if context.current_task is None:
            status = TaskStatus(state=SUBMITTED)
            await queue.enqueue_event(Task(id=task_id, context_id=context_id, status=status))
        args, keywords = _arguments(self._agent, context.message)
        agent = partial(self._agent, **keywords) if keywords else self._agent
        try:
            handle = await self._host.start(agent, *args, **options)
        except HTTPException as refused:  # the server is shutting down, or the caller has reached its limit of runs
            raise StoppableError(str(refused.detail)) from None
        await TaskUpdater(queue, task_id, context_id).start_work()
        return handle

    async def _wait_for_outcome(
        self, handle: RunHandle[Any], context: RequestContext, queue: EndHoldingQueue
    ) -> Outcome[Any]:
        updater, is_first = TaskUpdater(queue, *ids_of(context)), True
        async for event in self.supervisor.events(handle.id):  # until it is over
            if event.type is EventType.PARTIAL:
                is_more = "delta" in event.data and not is_first
                part = part_of(event.data.get("delta", event.data.get("value")))
                await updater.add_artifact([part], "partial", "partial", append=is_more, last_chunk=False)
                is_first = False
            elif event.type is EventType.PROGRESS:
                progress = {"progress": plain(dict(event.data))}
                await updater.update_status(TaskState.TASK_STATE_WORKING, metadata=progress)
        outcome = await handle.outcome()
        if outcome.status is Status.COMPLETED and outcome.result is not None:
            await updater.add_artifact([part_of(outcome.result)], "result", "result")
        return outcome

    async def _publish_own_end(self, outcome: Outcome[Any], queue: EndHoldingQueue) -> bool:
        if outcome.status is Status.COMPLETED:
            await queue.end(COMPLETED, {})
        else:
            await queue.end(FAILED, {}, str(outcome.error))
        return True


def _arguments(agent: Callable[..., Any], message: Message | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in a message: keywords from an object, otherwise a single one, or none."""
    parts = () if message is None else message.parts
    for part in parts:
        if part.HasField("data"):
            arguments = _with_integers(MessageToDict(part.data))
            return ((), arguments) if isinstance(arguments, dict) else ((arguments,), {})
    text = "\n".join(part.text for part in parts if part.text)
    try:
        inspect.signature(agent).bind(text)
    except TypeError:
        _check_callable_without(agent)
        return (), {}
    except ValueError:
        pass  # written in C, without a signature
    return (text,), {}


def _check_callable_without(agent: Callable[..., Any]) -> None:
    try:
        inspect.signature(agent).bind()
    except TypeError as error:
        raise InvalidArgument(f"send its arguments as a JSON object (a data part): {error}") from None


def _with_integers(value: Any) -> Any:
    """Return a value of a message as it was sent: protocol buffers turn every number into a float."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case list():
            return [_with_integers(item) for item in value]
    return value

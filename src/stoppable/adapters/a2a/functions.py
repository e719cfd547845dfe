"""An agent of stoppable as the executor of an A2A server."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from a2a.server.agent_execution import RequestContext
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, Task, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict
from starlette.exceptions import HTTPException

from stoppable import EventType, InvalidArgument, Outcome, Policy, RunHandle, Status, StoppableError
from stoppable.adapters.a2a.executor import POLICY, RunExecutor, ids_of
from stoppable.adapters.a2a.fence import Fence
from stoppable.adapters.a2a.run_tasks import part_of
from stoppable.adapters.a2a.states import FAILED, SUBMITTED
from stoppable.adapters.a2a.wire import plain
from stoppable.server import Host
from stoppable.supervisor import StartOptions

COMPLETED = TaskState.TASK_STATE_COMPLETED


class AgentFunction(RunExecutor):
    """Handles a message as a run of an agent, on the event loop where the server runs agents.

    A JSON object in the message is the agent's keyword arguments, its text the only argument otherwise. Partials are
    chunks of the artifact ``partial``, what the agent returns is the artifact ``result``.
    """

    def __init__(self, agent: Callable[..., Any], host: Host, name: str, *, policy: Policy = POLICY) -> None:
        super().__init__(host.supervisor, name, policy=policy)
        self._agent, self._host = agent, host

    async def _start(self, context: RequestContext, fence: Fence, options: StartOptions) -> RunHandle[Any]:
        task_id, context_id = ids_of(context)
        if context.current_task is None:
            status = TaskStatus(state=SUBMITTED)
            await fence.enqueue_event(Task(id=task_id, context_id=context_id, status=status))
        args, keywords = _arguments(self._agent, context.message)
        agent = partial(self._agent, **keywords) if keywords else self._agent
        try:
            handle = await self._host.start(agent, *args, **options)
        except HTTPException as refused:  # the server is shutting down, or the caller has reached its limit of runs
            raise StoppableError(str(refused.detail)) from None
        await TaskUpdater(fence, task_id, context_id).start_work()
        return handle

    async def _awaited(self, handle: RunHandle[Any], context: RequestContext, fence: Fence) -> Outcome[Any]:
        updater, is_first = TaskUpdater(fence, *ids_of(context)), True
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

    async def _publish_own_end(self, outcome: Outcome[Any], fence: Fence) -> bool:
        if outcome.status is Status.COMPLETED:
            await fence.end(COMPLETED, {})
        else:
            await fence.end(FAILED, {}, str(outcome.error))
        return True


def _arguments(agent: Callable[..., Any], message: Message | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in a message: keywords from an object, otherwise a single one, or none."""
    parts = () if message is None else message.parts
    for part in parts:
        if part.HasField("data"):
            given = _with_integers(MessageToDict(part.data))
            return ((), given) if isinstance(given, dict) else ((given,), {})
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

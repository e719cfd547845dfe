"""Tasks of agents on other servers, as the client of a2a-sdk 0.3 has them; google-adk 1.x needs that one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from a2a.client.errors import A2AClientHTTPError, A2AClientJSONRPCError
from a2a.types import TaskIdParams, TaskQueryParams, TaskState

from stoppable import Fate, RemoteNode, RemoteStop, Status
from stoppable.adapters.conversation import CALL_SECONDS, Conversation, follow

_METADATA = "stoppable"
_TERMINAL = frozenset({TaskState.completed, TaskState.canceled, TaskState.failed, TaskState.rejected})
_INTERRUPTED = frozenset({TaskState.input_required, TaskState.auth_required})
_NOT_FOUND, _INTERNAL = -32001, -32603
_HTTP_NOT_FOUND, _HTTP_SERVER_ERROR = 404, 500


def client(inner: Any, *, name: str, url: str | None = None) -> Any:
    """Make every task that a client starts inside a run a node of that run's tree; changes and returns the client.

    A stop is passed on as a cancel once the id of the task is known. A client that streams learns the id at once. A
    client that waits for the whole answer, the default of a RemoteA2aAgent, learns it only at the end: until then the
    task is ``unreachable``, and a run that is stopped meanwhile is ``lost``.
    """
    return follow(
        inner, lambda events, request, context: _OldTaskConversation(inner, events, name, url, request.task_id, context)
    )


class _OldTaskConversation(Conversation):
    """One message in protocol 0.3."""

    def __init__(
        self, inner: Any, events: AsyncIterator[Any], name: str, url: str | None, task_id: str | None, context: Any
    ) -> None:
        super().__init__(events, name, url=url)
        self._client, self._context = inner, context
        self.task_id = task_id or ""

    def _note(self, node: RemoteNode, event: Any) -> None:
        if isinstance(event, tuple):  # the task, and what changed; anything else is an answer without a task
            self._known_as(node, event[0].id)
            self._end(node, event[0])

    def _is_answer(self, error: Exception) -> bool:
        return isinstance(error, A2AClientJSONRPCError)

    def _end(self, node: RemoteNode, task: Any) -> Fate | None:
        """Note the state of the task, and return what it means if it is an end."""
        state = task.status.state
        if state in _INTERRUPTED:
            self.park(node)  # it waits for another message, or goes on by itself
        else:
            self.resume(node)
        if state not in _TERMINAL:
            return None
        self.has_completed = state == TaskState.completed
        if _is_lost(task) and node.run.token.stopped:
            node.give_up()  # nothing more will be known about it
            return None
        fate = Fate.CANCELLED if state == TaskState.canceled else Fate.FINISHED
        node.ended(fate)
        return fate

    async def _ask(self, node: RemoteNode) -> Fate | None:
        async with asyncio.timeout(CALL_SECONDS):
            task = await self._client.get_task(TaskQueryParams(id=self.task_id), context=self._context)
        return self._end(node, task)

    async def _tell(self, stop: RemoteStop) -> Fate | None:
        node = self._node
        assert node is not None, "a stop is passed on only to a node"
        how: dict[str, Any] = {"mode": str(stop.mode), "reason": stop.reason.message or str(stop.reason)}
        if stop.grace is not None:
            how["remaining"] = stop.grace
        request = TaskIdParams(id=self.task_id, metadata={_METADATA: how})
        try:
            async with asyncio.timeout(CALL_SECONDS + (stop.grace or 0.0)):
                return self._end(node, await self._client.cancel_task(request, context=self._context))
        except (A2AClientJSONRPCError, A2AClientHTTPError) as refused:
            if _is_not_found(refused):
                if self.is_streaming:
                    raise  # by a replica that does not have it: it is asked again, like one that does not answer
                return Fate.FINISHED  # it was forgotten there, which only ended tasks are
            fate = await self._ask(node)  # the error says why not; what counts is how the task ended
            if fate is None and _may_pass(refused):
                raise
            return fate


def _may_pass(error: Any) -> bool:
    """Return whether an error may be gone when the cancel is repeated."""
    if isinstance(error, A2AClientHTTPError):
        return bool(error.status_code >= _HTTP_SERVER_ERROR)
    return bool(getattr(error.error, "code", None) == _INTERNAL)


def _is_not_found(error: Any) -> bool:
    if isinstance(error, A2AClientHTTPError):  # over REST
        return bool(error.status_code == _HTTP_NOT_FOUND)
    return getattr(error.error, "code", None) == _NOT_FOUND


def _is_lost(task: Any) -> bool:
    """Return whether the other agent says that parts of the task may still be running."""
    facts = (task.metadata or {}).get(_METADATA)
    return isinstance(facts, dict) and facts.get("status") == Status.LOST

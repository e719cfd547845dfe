"""Tasks of another A2A agent as nodes of the tree of the run that asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeVar

from a2a.client.client import Client, ClientCallContext
from a2a.types import CancelTaskRequest, GetTaskRequest, StreamResponse, TaskState
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
    MethodNotFoundError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from google.protobuf.json_format import MessageToDict

from stoppable import Fate, RemoteNode, RemoteStop, Status
from stoppable.adapters.a2a.executor import POLICY
from stoppable.adapters.a2a.task_states import CANCELED, INTERRUPTED, METADATA, TERMINAL
from stoppable.adapters.conversation import CALL_SECONDS, Conversation, follow

C = TypeVar("C", bound=Client)

# The errors of an agent that refuses a message. An internal error and an invalid answer are not among them: a task may
# have been started before.
_REFUSALS = (
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
    MethodNotFoundError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
_CANCEL_REFUSALS = (*_REFUSALS, TaskNotCancelableError)
_MAY_BE_REPEATED = (408, 425, 429)


def client(given: C, *, name: str = "a2a", url: str | None = None) -> C:
    """Make every task that a client starts inside a run a node of that run's tree; changes and returns the client.

    A stop of the run is passed on as a cancel, with its mode, its reason and the rest of its grace, as soon as the id
    of the task is known. The fate of the node is what the other agent reports; if that does not answer, the node is
    ``unreachable`` and the run ``lost``. Leaving the stream of ``send_message`` early stops the task.

    ``name`` is what receipts and the web UI call it; ``url`` is noted with the id of the task.
    """
    return follow(
        given, lambda events, request, _: _TaskConversation(given, events, name, url, request.message.task_id)
    )


class _TaskConversation(Conversation):
    """One message in protocol 1.0, or 0.3 as the SDK translates it."""

    def __init__(
        self, inner: Client, events: AsyncIterator[StreamResponse], name: str, url: str | None, task_id: str
    ) -> None:
        super().__init__(events, name, url=url, policy=POLICY)
        self._client = inner
        self.task_id = task_id

    def _note(self, node: RemoteNode, event: StreamResponse) -> None:
        self._known_as(node, event.task.id or event.status_update.task_id or event.artifact_update.task_id)
        for one in (event.task, event.status_update):
            if one.HasField("status"):
                self._end(node, one)

    def _end(self, node: RemoteNode, answer: Any) -> Fate | None:
        """Note the state of the task, and return what it means if it is an end."""
        state = answer.status.state
        if state in INTERRUPTED:
            self.park(node)  # it waits for another message, or goes on by itself
        else:
            self.resume(node)
        if state not in TERMINAL:
            return None
        self.has_completed = state == TaskState.TASK_STATE_COMPLETED
        if _is_lost(answer) and node.run.token.stopped:
            node.give_up()  # nothing more will be known about it
            return None
        fate = Fate.CANCELLED if state == CANCELED else Fate.FINISHED
        node.ended(fate)
        return fate

    def _is_answer(self, error: Exception) -> bool:
        return isinstance(error, _REFUSALS) or _is_refused(error.__cause__)

    async def _ask(self, node: RemoteNode) -> Fate | None:
        context = ClientCallContext(timeout=CALL_SECONDS)
        return self._end(node, await self._client.get_task(GetTaskRequest(id=self.task_id), context=context))

    async def _tell(self, stop: RemoteStop) -> Fate | None:
        node = self._node
        assert node is not None, "a stop is passed on only to a node"
        request = CancelTaskRequest(id=self.task_id)
        how = {"mode": str(stop.mode), "reason": stop.reason.message or str(stop.reason)}
        request.metadata.update({METADATA: how if stop.grace is None else {**how, "remaining": stop.grace}})
        context = ClientCallContext(timeout=CALL_SECONDS + (stop.grace or 0.0))
        try:
            return self._end(node, await self._client.cancel_task(request, context=context))
        except TaskNotFoundError:
            if self.is_streaming:
                raise  # by a replica that does not have it: it is asked again, like one that does not answer
            return Fate.FINISHED  # it was forgotten there, which only ended tasks are
        except A2AError as error:
            if not (isinstance(error, _CANCEL_REFUSALS) or _is_refused(error.__cause__)):
                return await self._ask_again(node, error)
            return await self._ask(node)  # the error says why not; what counts is how the task ended

    async def _ask_again(self, node: RemoteNode, error: A2AError) -> Fate:
        """Return the end of a task whose cancel met an error that may pass, or raise it so that it is repeated."""
        fate = await self._ask(node)
        if fate is None:
            raise error
        return fate


def _is_refused(error: BaseException | None) -> bool:
    """Return whether an error is an HTTP response that refuses the request: a wrong key, a body that is too large."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return status in range(400, 500) and status not in _MAY_BE_REPEATED


def _is_lost(answer: Any) -> bool:
    """Return whether the other agent says that parts of the task may still be running."""
    facts = MessageToDict(answer.metadata).get(METADATA) if answer.HasField("metadata") else None
    return isinstance(facts, dict) and facts.get("status") == Status.LOST

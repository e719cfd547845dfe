"""Tasks of another A2A agent as nodes of the tree of the run that asks for them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

from a2a.client.client import Client, ClientCallContext
from a2a.types import CancelTaskRequest, GetTaskRequest, SendMessageRequest, StreamResponse, Task, TaskState
from a2a.utils.errors import A2AError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict

import stoppable
from stoppable import Fate, Mode, Reason, ReasonKind, RemoteNode, RemoteStop, Status
from stoppable.adapters.a2a.executor import POLICY
from stoppable.adapters.a2a.states import CANCELED, INTERRUPTED, METADATA, TERMINAL

C = TypeVar("C", bound=Client)

_logger = logging.getLogger("stoppable.adapters.a2a")

_MARK = "_stoppable"
_CALL_SECONDS = 5.0
_PAUSE_SECONDS, _LONGEST_PAUSE = 0.1, 2.0
_TRIES = 5
_LEAVE_SECONDS = 30.0  # the ladder ends before

_background: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references


def client(given: C, *, name: str = "a2a", url: str | None = None) -> C:
    """Make every task that a client starts inside a run a node of that run's tree, in place, and return the client.

    A stop of the run is passed on as a cancel, with its mode, reason and what is left of its grace, also if the id of
    the task becomes known only later. What became of the node is what the other agent says; one that cannot be asked
    is ``unreachable``, and the run ``lost``. Leaving the stream of ``send_message`` early stops the task.

    ``name`` is what receipts and the web UI call it; ``url`` is noted with the id of the task.
    """
    if not hasattr(given, _MARK):
        plain = given.send_message

        @functools.wraps(plain)
        async def send_message(
            request: SendMessageRequest, *, context: ClientCallContext | None = None
        ) -> AsyncIterator[StreamResponse]:
            events = plain(request, context=context)
            if stoppable.current_run() is not None:
                events = _Conversation(given, events, name, url, request.message.task_id).events()
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event

        given.send_message = send_message
        setattr(given, _MARK, name)
    return given


class _Conversation:
    """One message to another agent, and the task that it started there."""

    def __init__(
        self, given: Client, events: AsyncIterator[StreamResponse], name: str, url: str | None, task_id: str
    ) -> None:
        self._client, self._source, self._name, self._url = given, events, name, url
        self._task_id = task_id
        self._state: TaskState | None = None
        self._node: RemoteNode | None = None
        self._queue: asyncio.Queue[StreamResponse | BaseException | None] = asyncio.Queue()

    async def events(self) -> AsyncGenerator[StreamResponse, None]:
        """Yield what the other agent tells; raises AgentStopped if the stop ended it there."""
        follower = asyncio.create_task(self._follow(), name=f"stoppable follows {self._name}")
        _background.add(follower)
        follower.add_done_callback(self._followed)
        try:
            while isinstance(told := await self._queue.get(), StreamResponse):
                yield told
            if self._node is not None and self._node.fate is not None:
                await asyncio.wait({follower})  # it leaves its block: a run that ends before its children was stopped
        except (GeneratorExit, asyncio.CancelledError) as left:
            await self._leave(follower, left)
            raise
        if self._state != TaskState.TASK_STATE_COMPLETED:
            stoppable.check()
        if told is not None:
            raise told

    async def _leave(self, follower: asyncio.Task[None], left: BaseException) -> None:
        """Stop the task there, and wait for its end: whoever leaves may close the client next.

        Not if somebody else cancelled the reader: that goes on at once (G9).
        """
        node = self._node
        if node is None or node.fate is not None:
            return
        node.run.stop(Mode.GRACEFUL, Reason.of("its reader left", kind=ReasonKind.DISCONNECT))
        run = stoppable.current_run()
        if isinstance(left, GeneratorExit) or (run is not None and run.token.stopped):
            with stoppable.shielded(_LEAVE_SECONDS):
                await asyncio.wait({follower}, timeout=_LEAVE_SECONDS)

    def _followed(self, follower: asyncio.Task[None]) -> None:
        _background.discard(follower)
        error = None if follower.cancelled() else follower.exception()
        self._queue.put_nowait(error)
        if error is not None:
            _logger.debug("the task %s of %s: %r", self._task_id, self._name, error)

    # The node

    async def _follow(self) -> None:
        """Be the task of the node, from before the message is sent until the other agent has said the end."""
        reader: asyncio.Task[None] | None = None
        try:
            async with stoppable.remote(self._name, tell=self._tell, policy=POLICY) as node:
                self._node = node
                if self._task_id:
                    self._identify(node)
                # A reader of its own: when the ladder cancels this task, the id may still have to be learned.
                with stoppable.detached():
                    reader = asyncio.create_task(self._read(node))
                await asyncio.wait({reader})
                reader.result()
                if node.fate is None:
                    await self._poll(node)
        finally:
            if reader is not None:
                reader.cancel()

    async def _read(self, node: RemoteNode) -> None:
        try:
            async for event in self._source:
                self._note(node, event)
                self._queue.put_nowait(event)
                if self._state is not None:  # some servers leave the stream open
                    break
        except Exception as error:
            if _is_unsent(error):
                node.ended(Fate.SKIPPED)
            self._queue.put_nowait(error)
            raise
        self._queue.put_nowait(None)
        if not self._task_id:
            node.ended(Fate.FINISHED)  # an answer without a task

    def _note(self, node: RemoteNode, event: StreamResponse) -> None:
        told = event.task.id or event.status_update.task_id or event.artifact_update.task_id
        if told and not self._task_id:
            self._task_id = told
            self._identify(node)
        for one in (event.task, event.status_update):
            if one.HasField("status"):
                self._end(node, one)

    def _identify(self, node: RemoteNode) -> None:
        node.identify(task=self._task_id, **({} if self._url is None else {"url": self._url}))

    def _end(self, node: RemoteNode, told: Any) -> Fate | None:
        """Note the end of the task, if it has one, and return what it means."""
        state = told.status.state
        if state in INTERRUPTED and not node.run.token.stopped:
            node.ended(Fate.FINISHED)  # it waits for another message
        if state not in TERMINAL or _is_lost(told):
            return None
        self._state = state
        fate = Fate.CANCELLED if state == CANCELED else Fate.FINISHED
        node.ended(fate)
        return fate

    async def _poll(self, node: RemoteNode) -> None:
        """Ask for the end of a task whose stream has ended before it."""
        pause, failures = _PAUSE_SECONDS, 0
        while node.fate is None:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            try:
                self._end(node, await self._ask())
                failures = 0
            except Exception:
                failures += 1
                if failures == _TRIES:
                    raise

    async def _ask(self) -> Task:
        context = ClientCallContext(timeout=_CALL_SECONDS)
        return await self._client.get_task(GetTaskRequest(id=self._task_id), context=context)

    async def _tell(self, stop: RemoteStop) -> Fate | None:
        """Pass a stop on, and return what the other agent says became of the task."""
        node = self._node
        assert node is not None, "it is told of stops"
        request = CancelTaskRequest(id=self._task_id)
        how = {"mode": str(stop.mode), "reason": stop.reason.message or str(stop.reason)}
        request.metadata.update({METADATA: how if stop.grace is None else {**how, "remaining": stop.grace}})
        context = ClientCallContext(timeout=_CALL_SECONDS + (stop.grace or 0.0))
        try:
            return self._end(node, await self._client.cancel_task(request, context=context))
        except TaskNotFoundError:
            return Fate.FINISHED  # it was forgotten there, which only ended tasks are
        except A2AError:
            return self._end(node, await self._ask())  # it says why not; what counts is how the task ended


def _is_unsent(error: BaseException | None) -> bool:
    """Return whether no connection was made, so that there is no task either; the SDK wraps the errors of httpx."""
    while error is not None:
        if type(error).__name__ in {"ConnectError", "ConnectTimeout"}:
            return True
        error = error.__cause__
    return False


def _is_lost(told: Any) -> bool:
    """Return whether the other agent does not know itself that everything of the task has ended."""
    facts = MessageToDict(told.metadata).get(METADATA) if told.HasField("metadata") else None
    return isinstance(facts, dict) and facts.get("status") == Status.LOST

"""A message to an agent on another server, and the task that it starts there, as a node of the run's tree.

It is independent of the protocol: each adapter reads the id and the end of a task, and cancels one, in its own way.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeVar

import stoppable
from stoppable import Fate, Mode, Policy, Reason, ReasonKind, RemoteNode, RemoteStop

C = TypeVar("C")

_logger = logging.getLogger("stoppable.adapters")

_MARK = "_stoppable"
CALL_SECONDS = 5.0
_PAUSE_SECONDS, _LONGEST_PAUSE = 0.1, 2.0
_TRIES = 5
_LEAVE_SECONDS = 30.0  # the ladder ends before

_parked: dict[tuple[str, str], RemoteNode] = {}  # by the run and the task that waits for it

_background: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references


def follow(client: C, begin: Callable[[AsyncIterator[Any], Any, Any], Conversation]) -> C:
    """Make every message that a client sends inside a run a conversation, in place and once, and return the client.

    ``begin`` makes one of the events that the client yields, the message and the context of the call.
    """
    if not hasattr(client, _MARK):
        plain = client.send_message  # type: ignore[attr-defined]

        @functools.wraps(plain)
        async def send_message(request: Any, *, context: Any = None, **more: Any) -> AsyncIterator[Any]:
            events = plain(request, context=context, **more)
            if stoppable.current_run() is not None:
                events = begin(events, request, context).events()
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event

        client.send_message = send_message  # type: ignore[attr-defined]
        setattr(client, _MARK, True)
    return client


class Conversation:
    """One message to another agent, and the task that it started there.

    Subclasses implement a protocol. This class never learns the id of the task, so it cannot pass a stop on, and a task
    that has not ended by then is ``unreachable``.
    """

    def __init__(
        self, source: AsyncIterator[Any], name: str, *, url: str | None = None, policy: Policy | None = None
    ) -> None:
        self._source, self._name, self._url, self._policy = source, name, url, policy
        self._node: RemoteNode | None = None
        # one-tuples of events, then what ended them
        self._queue: asyncio.Queue[tuple[Any] | BaseException | None] = asyncio.Queue()
        self.task_id: str = ""
        """The task there, once it is known."""
        self.has_completed: bool | None = None
        """How the task ended, once the other agent has said so: completed, or in another way."""
        self.is_parked: bool = False
        """Whether the task waits for its caller: for input, or a permission."""
        self.is_streaming: bool = False
        """Whether events of the task may still come."""

    # What a protocol adds

    def _note(self, node: RemoteNode, event: Any) -> None:
        """Read the id of the task, and its end, from an event of the other agent."""

    async def _ask(self, node: RemoteNode) -> Fate | None:
        """Ask for the task, note its end if it has one, and return what it means; raises if there is no answer."""
        raise NotImplementedError("a protocol that knows the ids of tasks implements this")

    async def _tell(self, stop: RemoteStop) -> Fate | None:
        """Pass a stop on, and return the fate of the task as the other agent reports it."""
        raise NotImplementedError("a protocol that knows the ids of tasks implements this too")

    def _is_answer(self, error: Exception) -> bool:  # noqa: ARG002 - protocols differ in it
        """Return whether an error is the other agent's answer, and means that no task was started or is running."""
        return False

    # What the reader sees

    async def events(self) -> AsyncGenerator[Any, None]:
        """Yield the events of the other agent; raises AgentStopped if the stop ended the task there."""
        follower = asyncio.create_task(self._follow(), name=f"stoppable follows {self._name}")
        _background.add(follower)
        follower.add_done_callback(self._on_followed)
        try:
            while isinstance(item := await self._queue.get(), tuple):
                yield item[0]
            if self._node is not None and self._node.fate is not None:
                await asyncio.wait({follower})  # it leaves its block: a run that ends before its children was stopped
        except (GeneratorExit, asyncio.CancelledError) as exit_error:
            await self._leave(follower, exit_error)
            raise
        if not self.has_completed:
            stoppable.check()
        if item is not None:
            raise item

    async def _leave(self, follower: asyncio.Task[None], exit_error: BaseException) -> None:
        """Stop the task there and wait for its end, because the caller may close the client next.

        A cancel by other code is not delayed by this (G9).
        """
        node = self._node
        if node is None or node.fate is not None or self.is_parked:  # a task that waits for its caller may be continued
            return
        node.run.stop(Mode.GRACEFUL, Reason.of("its reader left", kind=ReasonKind.DISCONNECT))
        run = stoppable.current_run()
        if isinstance(exit_error, GeneratorExit) or (run is not None and run.token.stopped):
            with stoppable.shielded(_LEAVE_SECONDS):
                await asyncio.wait({follower}, timeout=_LEAVE_SECONDS)

    def _on_followed(self, follower: asyncio.Task[None]) -> None:
        _background.discard(follower)
        error = None if follower.cancelled() else follower.exception()
        self._queue.put_nowait(error)
        if error is not None:
            _logger.debug("the task %s of %s: %r", self.task_id, self._name, error)

    # The node

    async def _follow(self) -> None:
        """Run as the node's task, from before the message is sent until the other agent has reported the end."""
        reader: asyncio.Task[None] | None = None
        watcher: asyncio.Task[None] | None = None
        try:
            async with stoppable.remote(self._name, tell=self._tell, policy=self._policy) as node:
                self._node = node
                if self.task_id:
                    self._identify(node)
                    if (earlier := _parked.pop(self._address, None)) is not None:
                        earlier.ended(Fate.FINISHED)  # this message continues it, under a node of its own
                # In a separate task: when the ladder cancels this one, the id of the task may not be known yet.
                with stoppable.detached():
                    reader = asyncio.create_task(self._read(node))
                    watcher = asyncio.create_task(node.gone())
                await asyncio.wait({reader, watcher}, return_when=asyncio.FIRST_COMPLETED)
                if node.fate is None and watcher.done():
                    stoppable.check()  # it was given up
                if not self.is_parked:
                    await asyncio.wait({reader})  # its last events count, also if the end is known from a cancel
                if self.is_parked:
                    await asyncio.wait({watcher})
                    return
                reader.result()
                if node.fate is None:
                    await self._poll(node)
        finally:
            for task in (reader, watcher):
                if task is not None:
                    task.cancel()
            _parked.pop(self._address, None)

    def park(self, node: RemoteNode) -> None:
        """Note that the task waits for its caller; the next message to it, if there is one, continues it."""
        self.is_parked = True
        node.park()
        _parked[self._address] = node

    def resume(self, node: RemoteNode) -> None:
        """Note that the task goes on."""
        if self.is_parked:
            self.is_parked = False
            node.resume()
            _parked.pop(self._address, None)

    @property
    def _address(self) -> tuple[str, str]:
        assert self._node is not None, "it has begun"
        parent = self._node.run.parent
        return ("" if parent is None else parent.id), self.task_id

    async def _read(self, node: RemoteNode) -> None:
        self.is_streaming = True
        try:
            async for event in self._source:
                self._note(node, event)
                self._queue.put_nowait((event,))
                if self.has_completed is not None:  # some servers leave the stream open
                    break
        except Exception as error:
            if _is_unsent(error):
                node.ended(Fate.SKIPPED)
            elif not self.task_id and self._is_answer(error):
                node.ended(Fate.FINISHED)
            self._queue.put_nowait(error)
            raise
        finally:
            self.is_streaming = False
        self._queue.put_nowait(None)
        if not self.task_id:
            node.ended(Fate.FINISHED)  # an answer without a task

    def _known_as(self, node: RemoteNode, task_id: str) -> None:
        """Note the id of the task; the first one counts."""
        if task_id and not self.task_id:
            self.task_id = task_id
            self._identify(node)

    def _identify(self, node: RemoteNode) -> None:
        node.identify(task=self.task_id, **({} if self._url is None else {"url": self._url}))

    async def _poll(self, node: RemoteNode) -> None:
        """Ask for the end of a task whose stream has ended before it."""
        pause, failures = _PAUSE_SECONDS, 0
        while node.fate is None:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            try:
                await self._ask(node)
                failures = 0
            except Exception:
                failures += 1
                if failures == _TRIES:
                    raise


def _is_unsent(error: BaseException | None) -> bool:
    """Return whether no connection was made, so that there is no task either; SDKs wrap the errors of httpx."""
    while error is not None:
        if type(error).__name__ in {"ConnectError", "ConnectTimeout"}:
            return True
        error = error.__cause__
    return False

"""One turn of Claude Code as a part of a run: what it has in flight, and how a stop ends it.

The CLI is another process, so the run holds what it does as boundaries that the hooks enter before it goes on, and a
task, which ends when the CLI has said that the turn is over. The stop therefore never cuts the CLI itself, which could
not save the session any more, but has it end the turn: its tools in flight finish, or are interrupted. Only if it does
not answer is its process ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import stoppable
from stoppable import AgentStopped, Entered, Run

if TYPE_CHECKING:
    from stoppable.adapters.claude_agent_sdk.connections import Connection

_PATIENCE_SECONDS = 30.0  # the ladder ends before
_PAUSE_SECONDS = 1.0
_TASK_SECONDS = 5.0
_DELEGATING = ("Agent", "Task")  # its name now, and its name before
_ENDED = ("completed", "failed", "killed", "stopped")


class ClaudeTurn:
    """What one run has asked of a CLI, from its prompt to the message with the result."""

    def __init__(self, connection: Connection, run: Run) -> None:
        self.run = run
        self.is_cut: bool = False
        """Whether the stop has ended it, or is about to."""
        self._connection = connection
        self._context = contextvars.copy_context()
        self._tools: dict[str, _Tool] = {}
        self._models: dict[str | None, Entered] = {}  # by the id of the sub-agent; None is the agent itself
        self._background: dict[str, str] = {}  # the kinds of tasks that go on without the turn, by their ids
        self._background_ended = asyncio.Event()
        self._answered, self._over = asyncio.Event(), asyncio.Event()
        self._is_refused = False  # a hook has told the CLI to end
        self._has_spoken = self._is_streamed = False
        self._jobs: set[asyncio.Task[None]] = set()
        self._cutting: asyncio.Task[None] | None = None
        self._keeper = asyncio.create_task(self._keep(), name="stoppable follows claude")
        self._hooks = (
            stoppable.on_stop(self._wind_down),
            stoppable.on_interrupt(self._interrupt),
            stoppable.on_end(self._let_go),
        )

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or its run has."""
        return self._over.is_set() or self.run.outcome is not None

    def begin_next(self) -> ClaudeTurn:
        """Begin another turn of the same run."""
        return self._context.copy().run(ClaudeTurn, self._connection, self.run)

    # What the CLI asks before it goes on; False means that it must not

    async def ask_model(self, agent_id: str | None) -> bool:
        """Note that the model of an agent is about to be called."""
        if agent_id in self._models:
            return True
        entered = await self._enter("llm", self._connection.model)
        if entered is None:
            return False
        self._models[agent_id] = entered
        return True

    async def begin_tool(self, call_id: str, name: str, agent_id: str | None) -> bool:
        """Note that a tool is about to be called."""
        tool = self._tools[call_id] = _Tool(name, agent_id)  # before it is entered: a stop must not overlook it
        tool.entered = await self._enter("tool", name)
        if tool.entered is None:
            del self._tools[call_id]
            return False
        self.end_model(agent_id)
        return True

    async def end_tool(self, call_id: str, agent_id: str | None) -> bool:
        """Note that a tool has ended on its own; its agent then calls its model."""
        if (tool := self._tools.pop(call_id, None)) is not None:
            tool.leave()
        if self.run.token.stopped:
            self.is_cut = self._is_refused = True
            return False
        if any(tool.agent_id == agent_id for tool in self._tools.values()):
            return True
        return await self.ask_model(agent_id)

    def end_model(self, agent_id: str | None, error: BaseException | None = None) -> None:
        """Note that the model of an agent has answered; what an interrupt cuts is kept up to there, so it is closed."""
        if (entered := self._models.pop(agent_id, None)) is not None:
            entered.leave(error or self._stop_of_interrupt(by_force=False))

    async def _enter(self, kind: str, name: str) -> Entered | None:
        """Enter a boundary of the run, or return None if it was stopped."""

        async def enter() -> Entered:
            return stoppable.enter(kind, name, until="run")

        # In a task of its own, because it joins the run: that of the hook must write its answer, also after a stop.
        task = asyncio.create_task(enter(), context=self._context.copy())
        await asyncio.wait([task])
        if task.cancelled() or task.exception() is not None:
            self.is_cut = self._is_refused = True
            return None
        return task.result()

    async def perform(self, function: Callable[..., Awaitable[Any]], *args: Any, joins: bool) -> asyncio.Task[Any]:
        """Call a function of the user as code of the run, and return its task when that has ended.

        If it joins the run, it is not called after a stop, and is cancelled with it.
        """

        async def call() -> Any:
            if joins:
                stoppable.check()
            return await function(*args)

        task = asyncio.create_task(call(), context=self._context.copy())
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task

    # What the CLI says

    async def note(self, message: dict[str, Any]) -> None:
        """Read a message of the CLI."""
        is_own = message.get("parent_tool_use_id") is None  # not of a sub-agent
        match message:
            case {"type": "stream_event", "event": event} if is_own:
                self._hear(event)
            case {"type": "assistant", "message": answer} if is_own:
                self._take_answer(answer)
            case {"type": "user", "message": {"content": list(blocks)}}:
                self._note_results(blocks)
            case {"type": "system"}:
                await self._note_system(message)
            case {"type": "result"}:
                self._note_end(message)

    async def _note_system(self, message: dict[str, Any]) -> None:
        match message:
            case {"subtype": "status", "status": "requesting"}:
                if not self._tools and not await self.ask_model(None):
                    self._cut()
            case {"subtype": subtype, "task_id": task_id}:
                self._note_task(task_id, subtype, message)
            case {"subtype": "init", "session_id": session_id}:
                self.run.annotate(session=session_id)

    def _hear(self, event: dict[str, Any]) -> None:
        match event:
            case {"type": "message_start"}:
                self._is_streamed = False
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                self._say(text, is_first=not self._is_streamed)
                self._is_streamed = True
            case {"type": "message_stop"}:
                self.end_model(None)

    def _take_answer(self, answer: dict[str, Any]) -> None:
        """Take the text of an answer that was not streamed."""
        if not self._is_streamed:
            for block in answer["content"]:
                if block.get("type") == "text":
                    self._say(block["text"], is_first=True)

    def _say(self, text: str, *, is_first: bool) -> None:
        text = "\n\n" + text if is_first and self._has_spoken else text
        self._has_spoken = True
        self._context.copy().run(stoppable.append_partial, text)

    def _note_results(self, blocks: list[dict[str, Any]]) -> None:
        """Note the results of tools; one whose end no hook has told before was refused or interrupted."""
        for block in blocks:
            if block.get("type") == "tool_result" and (tool := self._tools.pop(block["tool_use_id"], None)) is not None:
                tool.leave(self._stop_of_interrupt(by_force=True))

    def _note_task(self, task_id: str, subtype: str, message: dict[str, Any]) -> None:
        if subtype == "task_started":
            self._background[task_id] = str(message.get("task_type"))
            return
        patch = message.get("patch") or {}
        if subtype == "task_notification" or patch.get("status") in _ENDED:
            self._background.pop(task_id, None)
            self._background_ended.set()

    def _note_end(self, message: dict[str, Any]) -> None:
        if message.get("subtype") == "success" and not self._is_refused:
            self.is_cut = False  # it was complete before the interrupt
        self._answered.set()
        if self.run.token.stopped:
            self._start(self._end_background())
        elif not any(kind != "local_bash" for kind in self._background.values()):
            self.end()  # otherwise sub-agents work in the background, and the agent goes on when they have ended

    def end(self, error: BaseException | None = None) -> None:
        """Note that the CLI does nothing for the run any more."""
        if self._over.is_set():
            return
        self._answered.set()
        self._over.set()
        for agent_id in list(self._models):
            self.end_model(agent_id, error)
        for tool in self._tools.values():
            tool.leave(error or self._stop_of_interrupt(by_force=True))
        self._tools.clear()
        for hook in self._hooks:
            hook.remove()

    def _stop_of_interrupt(self, *, by_force: bool) -> AgentStopped | None:
        """Return what has ended an effect that ends now: the stop, if it had the CLI interrupt what it does."""
        if self._cutting is None:
            return None
        stop = AgentStopped(self.run.id, self.run.token.reason)
        stop.by_force = by_force
        return stop

    async def until_over(self) -> None:
        """Wait for the end of a turn that a stop ends."""
        if self.run.token.stopped and not self.is_over:
            with stoppable.shielded(_PATIENCE_SECONDS):
                await self._over.wait()

    # How a stop ends it

    async def _wind_down(self) -> None:
        """End the turn if only models are at work; otherwise the end of the last tool does that."""
        if self._answered.is_set():
            await self._end_background()
        elif self._models and all(tool.name in _DELEGATING for tool in self._tools.values()):
            self._cut()

    async def _interrupt(self) -> None:
        self._cut()

    async def _let_go(self, _outcome: object) -> None:
        self.end()  # a run that ends without a stop leaves the CLI alone

    def _cut(self) -> None:
        """Have the CLI interrupt what it does."""
        if self._cutting is None and not self._over.is_set():
            self.is_cut = True
            self._cutting = self._start(self._ask_to_interrupt())

    async def _ask_to_interrupt(self) -> None:
        while not self._answered.is_set():  # the CLI overlooks one that comes before it has begun
            with contextlib.suppress(Exception):
                await self._connection.interrupt()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_SECONDS):
                    await self._answered.wait()
        await self._end_background()

    async def _end_background(self) -> None:
        """End the commands and sub-agents that go on without the turn."""
        for task_id in list(self._background):
            with contextlib.suppress(Exception):
                await self._connection.stop_task(task_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TASK_SECONDS):
                while self._background:
                    self._background_ended.clear()
                    await self._background_ended.wait()
        self.end()

    def _start(self, job: Any) -> asyncio.Task[None]:
        """Start a task that goes on after the stop."""
        with stoppable.detached():
            task: asyncio.Task[None] = asyncio.create_task(job)
        self._jobs.add(task)  # asyncio itself keeps only weak references
        task.add_done_callback(self._jobs.discard)
        return task

    async def _keep(self) -> None:
        """Stand for the turn in the run: the run is not stopped before it, and cuts it if its grace is over."""
        try:
            stoppable.check()  # the task takes part in the run
            await self._over.wait()
        except asyncio.CancelledError:
            await self._force()
            raise
        finally:
            for job in self._jobs:
                job.cancel()

    async def _force(self) -> None:
        """Wait for the end of the turn as long as the ladder does; then the process of the CLI is ended."""
        # Nobody else may read its messages any more, and the CLI must not wait for that.
        draining = self._start(self._connection.drain())
        try:
            with stoppable.shielded(_PATIENCE_SECONDS):
                self._cut()
                await self._over.wait()
        finally:
            draining.cancel()
            if not self._over.is_set():
                self._connection.end_process(self.run)


class _Tool:
    """A tool call that is in flight."""

    __slots__ = ("agent_id", "entered", "name")

    def __init__(self, name: str, agent_id: str | None) -> None:
        self.name = name
        self.agent_id = agent_id
        self.entered: Entered | None = None

    def leave(self, error: BaseException | None = None) -> None:
        """Leave its boundary."""
        if self.entered is not None:
            self.entered.leave(error)


def stopped_in(task: asyncio.Task[Any]) -> bool:
    """Return whether a task of the run was ended by the stop."""
    return task.cancelled() or isinstance(task.exception(), AgentStopped)

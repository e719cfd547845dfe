"""A LangGraph graph behind A2A: tasks can be cancelled anywhere in the graph, and the conversation can go on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part, Task, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from langchain_core.messages import HumanMessage
from langgraph.types import Command

import stoppable
from stoppable import Policy, RunSummary, Status
from stoppable.adapters.a2a import POLICY, StoppableExecutor
from stoppable.adapters.a2a.task_states import RUN, owner_of
from stoppable.adapters.a2a.wire import plain as as_json
from stoppable.adapters.langgraph import stoppable_graph
from stoppable.adapters.langgraph.agents import plain
from stoppable.adapters.langgraph.boundaries import is_answer
from stoppable.adapters.langgraph.graphs import GraphCall, as_part_of, passing_on_unread
from stoppable.adapters.langgraph.sealing import awithdraw
from stoppable.adapters.langgraph.turns import OnStop
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.adapters.a2a_langgraph")

INPUT_REQUIRED = TaskState.TASK_STATE_INPUT_REQUIRED

_QUESTIONS = "stoppable.questions"  # of a task: the ids of the interrupts that it asked with
_PUBLISH_SECONDS = 1.0
_SEAL_SECONDS = 5.0


def thread_of(context_id: str, owner: str | None = None) -> str:
    """Return the thread of a context: its id without authentication, otherwise one that no other owner can name.

    Clients choose the ids of contexts, and a thread has the whole conversation.
    """
    if owner is not None:
        return f"@{quote(owner, safe='')}/{context_id}"
    return "@/" + context_id if context_id.startswith("@") else context_id


OnStopped = Callable[[str, RunSummary], Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """How the messages that an executor handled have ended, since it was made."""

    messages: int = 0
    stopped: int = 0
    lost: int = 0
    """Stopped, but parts of it may still be running."""
    too_late: int = 0
    """Ended before they noticed the stop."""
    stop_seconds: float = 0.0
    """From the request to the end, all stops together."""
    longest_stop_seconds: float = 0.0

    def after(self, run: RunSummary) -> Metrics:
        """Return them with one more run."""
        requested_at, ended_at = run.stop_requested_at, run.ended_at
        took = 0.0 if requested_at is None or ended_at is None else max(0.0, ended_at - requested_at)
        return Metrics(
            messages=self.messages + 1,
            stopped=self.stopped + (run.status is Status.STOPPED),
            lost=self.lost + (run.status is Status.LOST),
            too_late=self.too_late + (requested_at is not None and run.status in {Status.COMPLETED, Status.FAILED}),
            stop_seconds=self.stop_seconds + took,
            longest_stop_seconds=max(self.longest_stop_seconds, took),
        )


class LangGraphAgentExecutor(StoppableExecutor):
    """Executes A2A tasks with a LangGraph graph whose state has ``messages``; use it with ``StoppableRequestHandler``.

    The thread of the graph is ``thread_of(context_id, owner)``. A cancel stops the graph before it starts, between two
    chunks or nodes, or in the middle of a node once ``grace`` is over. The text so far and the last state of the thread
    are the artifacts of the canceled task. ``on_stopped(task_id, run)``, plain or async, is called after each stop.
    A pending ``interrupt()`` is the state ``input-required``, and the next message of the same task answers it; a
    cancel, or a message of another task in the thread, takes the question back.
    """

    def __init__(
        self,
        graph: Any,
        supervisor: Supervisor,
        *,
        name: str | None = None,
        grace: float | None = None,
        policy: Policy = POLICY,
        mode: str = "graceful",
        on_stop: OnStop = "seal",
        partial_results: bool = True,
        on_stopped: OnStopped | None = None,
    ) -> None:
        runnable_graph = stoppable_graph(graph, on_stop=on_stop)
        if grace is not None:
            policy = dataclasses.replace(policy, grace=grace)
        inner = _GraphExecutor(runnable_graph, has_partials=partial_results, seals=on_stop != "leave")
        super().__init__(inner, supervisor, name=name or runnable_graph.get_name(), policy=policy, mode=mode)
        self.graph: Any = runnable_graph
        self.metrics: Metrics = Metrics()
        """How the messages have ended so far."""
        self._on_stopped = on_stopped

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Handle a message as a run, then count it and call ``on_stopped``."""
        await super().execute(context, event_queue)
        run_id = context.call_context.state.get(RUN)
        if run_id is None:  # it was rejected, or its task had ended before
            return
        run = RunSummary.of(await self.supervisor.get(run_id))
        self.metrics = self.metrics.after(run)
        if run.status in {Status.STOPPED, Status.LOST}:
            await self._tell(context.task_id or "", run)

    async def seal(self, task: Task, context: ServerCallContext) -> None:
        """Take back the question of a task that is being canceled, so that no other task answers it."""
        if not self.graph.checkpointer or not _questions_of(task):
            return
        config = {"configurable": {"thread_id": thread_of(task.context_id, owner_of(context))}}
        try:
            async with asyncio.timeout(_SEAL_SECONDS):
                pending = {one.id for one in await _interrupts(self.graph, config)}
                if pending & _questions_of(task):
                    await awithdraw(self.graph, config)
        except Exception:  # the next message of the thread does it
            _logger.exception("the question of task %s was not taken back", task.id)

    async def _tell(self, task_id: str, run: RunSummary) -> None:
        _logger.info("task %s: its run %s is %s: %s", task_id, run.id, run.status, run.reason)
        if self._on_stopped is None:
            return
        try:
            result = self._on_stopped(task_id, run)
            if inspect.isawaitable(result):
                await result
        except Exception:
            _logger.exception("on_stopped of task %s failed", task_id)


class _GraphExecutor(AgentExecutor):
    """Publishes the output of a graph as an A2A task."""

    def __init__(self, graph: Any, *, has_partials: bool, seals: bool) -> None:
        self._graph, self._has_partials, self._seals = graph, has_partials, seals

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run the graph for a message."""
        current = context.current_task
        task_id = context.task_id or ""
        context_id = current.context_id if current is not None else context.context_id or ""
        if current is None:
            submitted = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            await event_queue.enqueue_event(Task(id=task_id, context_id=context_id, status=submitted))
        thread_id = thread_of(context_id, owner_of(context.call_context))
        turn = _MessageTurn(self._graph, TaskUpdater(event_queue, task_id, context_id), thread_id)
        try:
            await turn.take(context.get_user_input(), _questions_of(current))
        except BaseException:
            run = stoppable.current_run()
            if run is not None and run.token.stopped:
                with stoppable.shielded(_PUBLISH_SECONDS):
                    # No shield holds after a KILL, and nothing cancels again: a slow store would make the run `lost`.
                    is_killed = stoppable.should_stop()
                    if self._seals and not is_killed:  # otherwise the next message of the thread does it
                        await turn.withdraw()
                    if self._has_partials:
                        await turn.publish_partial(may_read=not is_killed)
            raise
        await turn.finish()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing: the stop of the run reaches the graph."""


class _MessageTurn:
    """One message, and the answer to it."""

    def __init__(self, graph: Any, updater: TaskUpdater, thread_id: str) -> None:
        self._graph, self._updater = graph, updater
        self._config = {"configurable": {"thread_id": thread_id}}
        self._answer_id = str(uuid.uuid4())
        self._is_begun = False
        self._last: Any = None
        self._unread: list[Any] = []
        """What the graph had said before a stop and was not published yet."""

    async def take(self, text: str, own_questions: frozenset[str]) -> None:
        """Give a message to the graph, and publish what its models say while they do.

        The message answers ``own_questions``, those that the task asked. Other questions that wait in the thread were
        asked by another task, and this message is not an answer to them.
        """
        await self._updater.start_work()
        graph_input: Any = {"messages": [HumanMessage(text)]}
        open_ids = {one.id for one in await self._questions()}
        if answered_ids := open_ids & own_questions:
            graph_input = Command(resume=dict.fromkeys(answered_ids, text))
        elif open_ids:
            await awithdraw(self._graph, self._config)
        await self._read(graph_input)

    async def _read(self, graph_input: Any) -> None:
        """Publish what the graph streams, in its run: a stop of that is one of this task, and cuts both at once."""
        call = GraphCall(self._graph, graph_input, self._config)

        async def work() -> None:
            with passing_on_unread(self._unread.append):
                with as_part_of(self._graph):
                    stream = self._graph.astream(graph_input, self._config, stream_mode=["values", "messages"])
                async for mode, item in stream:
                    if text := self._text_of(mode, item):
                        with stoppable.shielded(_PUBLISH_SECONDS):  # all of it, or nothing
                            await self._say(text)

        async with call.open():
            await call.perform(work)

    def _text_of(self, mode: str, item: Any) -> str:
        """Return the text of a chunk if it is one of the answer; a state is remembered."""
        if mode == "values":
            self._last = item
            return ""
        return str(item[0].text) if is_answer(self._graph, *item) else ""

    async def finish(self) -> None:
        """Publish the end: the complete answer, or the question of the graph."""
        questions = await self._questions()
        if questions:
            message = self._updater.new_agent_message([Part(text=str(question.value)) for question in questions])
            metadata = {_QUESTIONS: [question.id for question in questions]}
            await self._updater.update_status(INPUT_REQUIRED, message, metadata=metadata)
            return
        if self._is_begun:
            await self._say("", is_last=True)
        await self._updater.complete()

    async def publish_partial(self, *, may_read: bool) -> None:
        """Publish the end after a stop, with the text so far and the last state of the thread, or of the stream."""
        if rest := "".join(self._text_of(*chunk) for chunk in self._unread):
            await self._say(rest)
        if self._is_begun:
            await self._say("", is_last=True)
        is_kept = self._graph.checkpointer and may_read
        state = (await self._graph.aget_state(self._config)).values if is_kept else self._last
        if state:
            data = ParseDict(as_json(_with_messages(state)), Value())
            await self._updater.add_artifact([Part(data=data)], name="partial", metadata={"stoppable": "partial"})

    async def withdraw(self) -> None:
        """Take back a question that was being answered when the turn was stopped."""
        if self._graph.checkpointer:
            await awithdraw(self._graph, self._config)

    async def _questions(self) -> list[Any]:
        return await _interrupts(self._graph, self._config) if self._graph.checkpointer else []

    async def _say(self, text: str, *, is_last: bool = False) -> None:
        parts = [Part(text=text)]
        await self._updater.add_artifact(parts, self._answer_id, "answer", append=self._is_begun, last_chunk=is_last)
        self._is_begun = True


async def _interrupts(graph: Any, config: Any) -> list[Any]:
    """Return the questions that wait in a thread."""
    state = await graph.aget_state(config)
    return [one for task in state.tasks for one in task.interrupts]


def _questions_of(task: Task | None) -> frozenset[str]:
    """Return the ids of the questions that a task waits to have answered."""
    if task is None or task.status.state != INPUT_REQUIRED:
        return frozenset()
    return frozenset(MessageToDict(task.metadata).get(_QUESTIONS, ()))


def _with_messages(state: Any) -> Any:
    """Return a state with its messages as dictionaries; a value that has no such form is left as it is."""
    if not isinstance(state, dict):
        return state
    readable = dict(state)
    for name, value in state.items():
        with contextlib.suppress(Exception):  # a message may hold anything
            readable[name] = plain(value)
    return readable

"""Steps, model calls and tools of workflows as boundaries.

LlamaIndex executes each step in a task of its own. The control loop of a workflow starts them, and ends with whatever a
step raises. So a stop is raised in the step that notices it first, after those beside it have ended, and the
agent's memory is completed when the loop has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from llama_index.core.agent.workflow import AgentStream, AgentWorkflow
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from workflows import Workflow

import stoppable
from stoppable.adapters._model_streams import ModelStream
from stoppable.adapters._upstream import require, wrap
from stoppable.adapters._whole_calls import whole
from stoppable.adapters.llama_index import names
from stoppable.adapters.llama_index.turns import WorkflowTurn, current


def install() -> None:
    """Let the stop of a run reach every agent and workflow that is called in it; once per process.

    Model calls, tools and the steps of workflows are boundaries. Threads and processes that they start belong to their
    run, as with ``stoppable.instrument()``. Outside a run they work as before.
    """
    require("llama-index-core", names.missing())
    stoppable.instrument()
    wrap(Workflow, "run", _run)
    wrap(names.LOOP, "run", _run_loop)
    wrap(BaseWorkflowAgent, "call_tool", _call_tool)
    wrap(AgentWorkflow, "call_tool", _call_tool)
    for name, method in list(vars(SQLAlchemyChatStore).items()):
        if not name.startswith("_") and inspect.iscoroutinefunction(method):
            wrap(SQLAlchemyChatStore, name, whole)


_stopped_contexts: weakref.WeakSet[Any] = weakref.WeakSet()
"""Contexts of conversations whose last turn was stopped."""


def _run(real: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, ctx: Any = None, *args: Any, **kwargs: Any) -> Any:
        if ctx is not None and ctx in _stopped_contexts:
            _stopped_contexts.discard(ctx)
            names.forget_steps(ctx, self)
        caller = stoppable.current_run()
        if caller is None:
            return real(self, ctx, *args, **kwargs)
        _wrap_classes(self)
        token = current.set(WorkflowTurn())
        try:
            handler = real(self, ctx, *args, **kwargs)
        finally:
            current.reset(token)

        def end(task: asyncio.Task[Any]) -> None:
            is_cut = task.cancelled() or isinstance(task.exception(), stoppable.AgentStopped)
            if is_cut and caller.token.stopped:
                _stopped_contexts.add(handler.ctx)
                names.end_stream(handler)

        names.when_done(handler, end)
        return handler

    return run


def _wrap_classes(workflow: Any) -> None:
    """Wrap what the classes of a workflow and its agents define; done at the call, because users write them."""
    agents = workflow.agents.values() if isinstance(workflow, AgentWorkflow) else [workflow]
    for agent in agents:
        for kind in type(agent).__mro__:
            if issubclass(kind, BaseWorkflowAgent) and "take_step" in vars(kind):
                wrap(kind, "take_step", _take_step)
    if not isinstance(workflow, BaseWorkflowAgent | AgentWorkflow):
        for kind, name in names.steps_of(workflow):
            wrap(kind, name, _step)


def _run_loop(real: Callable[..., Any]) -> Callable[..., Any]:
    """Complete the agent's memory if a stop ends the workflow."""

    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        turn = current.get()
        if turn is None:
            return await real(self, *args, **kwargs)
        try:
            stoppable.check()  # the loop takes part in the run, so the run ends after it
            return await real(self, *args, **kwargs)
        except BaseException:
            await _until_done(asyncio.create_task(turn.seal()))
            raise

    return run


async def _until_done(task: asyncio.Task[None]) -> None:
    """Wait for a task whatever happens: the loop may be cancelled twice, by the stop and by the code that awaits it."""
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):  # an exception is being raised already
            await asyncio.wait([task])


def _step(real: Callable[..., Any]) -> Callable[..., Any]:
    """Make a step that a user has written a boundary."""

    async def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with stoppable.boundary("node", f"{type(self).__name__}.{real.__name__}"):
            return await real(self, *args, **kwargs)

    def blocking_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        with stoppable.boundary("node", f"{type(self).__name__}.{real.__name__}"):
            return real(self, *args, **kwargs)

    return step if inspect.iscoroutinefunction(real) else blocking_step


def _call_tool(real: Callable[..., Any]) -> Callable[..., Any]:
    async def call_tool(self: Any, ctx: Any, ev: Any) -> Any:
        turn = current.get()
        if turn is None:
            return await real(self, ctx, ev)
        async with stoppable.boundary("tool", ev.tool_name):
            turn.calls.begin(ev.tool_id)
            result = await real(self, ctx, ev)
            turn.calls.finish(ev.tool_id, result.tool_output.content)
            return result

    return call_tool


def _take_step(real: Callable[..., Any]) -> Callable[..., Any]:
    async def take_step(self: Any, ctx: Any, llm_input: Any, tools: Any, memory: Any) -> Any:
        turn = current.get()
        if turn is None or turn.is_asking:  # a step that calls that of its base class is one step
            return await real(self, ctx, llm_input, tools, memory)
        turn.agent, turn.ctx, turn.is_asking = self, ctx, True
        turn.calls.clear()  # the agent keeps those of its last step itself
        try:
            async with stoppable.boundary("llm", str(self.llm.metadata.model_name)):
                stream = ModelStream()
                output = await stream.read(real(self, _Context(ctx, turn, stream), llm_input, tools, memory))
        finally:
            turn.is_asking = False
        turn.calls.forget_text()
        turn.calls.request(*(call.tool_id for call in output.tool_calls))
        return output

    return take_step


class _Context:
    """A context that notes what a model streams, and stops between two pieces; everything else is the real one."""

    def __init__(self, ctx: Any, turn: WorkflowTurn, stream: ModelStream) -> None:
        self._ctx = ctx
        self._turn = turn
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def write_event_to_stream(self, event: Any) -> None:
        self._ctx.write_event_to_stream(event)
        if isinstance(event, AgentStream) and event.delta:  # of a call of a tool, a piece is worth nothing
            self._turn.calls.say(event.delta)
            stoppable.append_partial(event.delta)
            self._stream.note_piece()

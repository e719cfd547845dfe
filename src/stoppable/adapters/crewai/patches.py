"""Agents, model calls, tools, tasks and flows of CrewAI as parts of the run that calls them.

Every way to use an agent ends in its executor: a task of a crew, a kickoff of the agent, and work that another agent
leaves to it. An executor is a flow itself, whose methods are executed in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from crewai.events.event_bus import CrewAIEventsBus
from crewai.llms.base_llm import BaseLLM
from crewai.task import Task
from crewai.tools.base_tool import BaseTool, Tool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.types.streaming import StreamingOutputBase, StreamSessionBase
from crewai.utilities import file_store, rpm_controller, streaming
from crewai.utilities.rpm_controller import RPMController
from crewai_core import user_data

import stoppable
from stoppable import sync
from stoppable.adapters._shared import CurrentSpan, Span, TurnProgress
from stoppable.adapters._upstream import require, wrap
from stoppable.adapters.crewai import names
from stoppable.adapters.crewai.turns import AgentTurn, begin_call, call_of, current, inside


def install() -> None:
    """Let the stop of a run reach every crew, agent and flow that is called in it; once per process.

    Model calls, tools and the methods of flows are boundaries. Threads and processes that they start belong to their
    run, as with ``stoppable.instrument()``. Outside a run they work as before.
    """
    require("crewai", names.missing())
    stoppable.instrument()
    wrap(names.EXECUTOR, "invoke", _invoke)
    wrap(names.EXECUTOR, "invoke_async", _invoke_async)
    wrap(names.EXECUTOR, "_execute_single_native_tool_call", _execute_native)
    wrap(names.executor_module(), "execute_tool_and_check_finality", _execute_action)
    wrap(names.executor_module(), "get_llm_response", _ask)
    wrap(names.FLOW, "_execute_method", _execute_method)
    wrap(BaseLLM, "_emit_stream_chunk_event", _note_chunk)
    for kind in (BaseTool, Tool):
        wrap(kind, "run", _call_tool)
        wrap(kind, "arun", _call_tool_async)
    wrap(CrewStructuredTool, "invoke", _call_tool)
    wrap(CrewStructuredTool, "ainvoke", _call_tool_async)
    wrap(names.FLOW, "kickoff", _kickoff)
    wrap(Task, "_execute_task_async", _execute_in_thread)
    for base in (StreamingOutputBase, StreamSessionBase):
        wrap(base, "__init__", _init_stream)
    for name in ("create_chunk_generator", "create_frame_generator"):
        names.replace_everywhere(streaming, name, _create_generator)
    wrap(CrewAIEventsBus, "emit", _emit)
    wrap(file_store, "_run_sync", _outside)
    for name in names.STORAGE_METHODS:
        wrap(names.STORAGE, name, _outside)
    names.replace_everywhere(user_data, "_user_data_file", _outside)  # each crew asks for it, which makes its folder
    for owner, name in ((CrewAIEventsBus, "_ensure_executor_initialized"), (RPMController, "_reset_request_count")):
        wrap(owner, name, _start_for_all)
    _replace_waits()


# Agents


@contextlib.contextmanager
def _turn(executor: Any) -> Iterator[None]:
    run = stoppable.current_run()
    if run is None:
        with inside(None):
            yield
        return
    stoppable.check()
    _guard_model(executor.llm)
    outer = current.get()
    turn = AgentTurn(executor, run, is_below=outer is not None and outer.run == run)
    with inside(turn):
        try:
            yield
        except BaseException:
            turn.leave()
            names.end_display()
            raise


def _invoke(real: Callable[..., Any]) -> Callable[..., Any]:
    def invoke(self: Any, inputs: Any) -> Any:
        with _turn(self):
            return real(self, inputs)  # on the thread of a loop, a coroutine of invoke_async

    return invoke


def _invoke_async(real: Callable[..., Any]) -> Callable[..., Any]:
    async def invoke_async(self: Any, inputs: Any) -> Any:
        with _turn(self):
            return await real(self, inputs)

    return invoke_async


# Models: classes of CrewAI send requests, and each request is a boundary


def _ask(real: Callable[..., Any]) -> Callable[..., Any]:
    def get_llm_response(*args: Any, **kwargs: Any) -> Any:
        if (turn := current.get()) is not None:
            turn.ask()
        return real(*args, **kwargs)

    return get_llm_response


def _note_chunk(real: Callable[..., Any]) -> Callable[..., Any]:
    def emit(self: Any, chunk: Any, *args: Any, tool_call: Any = None, **kwargs: Any) -> Any:
        turn = current.get()
        if turn is None:
            return real(self, chunk, *args, tool_call=tool_call, **kwargs)
        if turn.is_over:  # the task that waited for this thread was cut
            return None
        if tool_call is None and isinstance(chunk, str) and chunk:
            turn.hear(chunk)
        result = real(self, chunk, *args, tool_call=tool_call, **kwargs)
        if turn.is_over:  # since the piece was heard: nothing else would end what shows it now
            names.end_display()
        return result

    return emit


def _guard_model(model: Any) -> None:
    """Make the calls of a model of the user's own boundaries."""
    if model is not None and not names.is_of_crewai(model):
        for kind in names.classes_with(model, "call"):
            wrap(kind, "call", _call_model)
        for kind in names.classes_with(model, "acall"):
            wrap(kind, "acall", _call_model_async)


_is_asking: contextvars.ContextVar[bool] = contextvars.ContextVar("stoppable-crewai-asking", default=False)


@contextlib.contextmanager
def _model_call(model: Any) -> Iterator[None]:
    """Enter the boundary of a model call; a method that calls that of its base class is one call.

    It belongs to the run, not to the thread: a model that sends requests all the same can then be cut there.
    """
    if _is_asking.get():
        yield
        return
    entered = stoppable.enter("llm", str(getattr(model, "model", None) or type(model).__name__), until="run")
    token = _is_asking.set(True)
    try:
        yield
    except BaseException as error:
        entered.leave(error)
        raise
    finally:
        _is_asking.reset(token)
    entered.leave()


def _call_model(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _model_call(self):
            return real(self, *args, **kwargs)

    return call


def _call_model_async(real: Callable[..., Any]) -> Callable[..., Any]:
    async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _model_call(self):
            return await real(self, *args, **kwargs)

    return acall


# Tools


def _execute_native(real: Callable[..., Any]) -> Callable[..., Any]:
    def execute(self: Any, tool_call: Any) -> Any:
        turn, call = current.get(), names.executor_module().extract_tool_call_info(tool_call)
        if turn is None or turn.executor is not self or not call:
            return real(self, tool_call)
        with turn.executing(call[0]) as finish:
            result = real(self, tool_call)
            finish(result["result"])
        return result

    return execute


def _execute_action(real: Callable[..., Any]) -> Callable[..., Any]:
    def execute(agent_action: Any, *args: Any, **kwargs: Any) -> Any:
        turn = current.get()
        if turn is None:
            return real(agent_action, *args, **kwargs)
        with turn.executing(call_of(agent_action)) as finish:
            result = real(agent_action, *args, **kwargs)
            finish(result.result)
        return result

    return execute


def _call_tool(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with stoppable.boundary("tool", str(self.name)):
            begin_call()
            return real(self, *args, **kwargs)

    return call


def _call_tool_async(real: Callable[..., Any]) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with stoppable.boundary("tool", str(self.name)):
            begin_call()
            return await real(self, *args, **kwargs)

    return call


# Tasks and flows


def _execute_in_thread(real: Callable[..., Any]) -> Callable[..., Any]:
    """Let a crew learn that a task in a thread was stopped: it waits for a future that gets nothing but errors."""

    def execute(self: Any, agent: Any, context: Any, tools: Any, future: Future[Any]) -> None:
        try:
            real(self, agent, context, tools, future)
        except BaseException as error:
            if future.done():
                raise
            future.set_exception(error)

    return execute


def _kickoff(real: Callable[..., Any]) -> Callable[..., Any]:
    """Raise the stop in blocking code, in place of the cancel that has ended the loop behind it."""

    def kickoff(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return real(self, *args, **kwargs)
        except asyncio.CancelledError:
            stoppable.check()
            raise

    return kickoff


def _execute_method(real: Callable[..., Any]) -> Callable[..., Any]:
    """Make each method of a flow that a user has written a boundary."""

    async def execute(self: Any, method_name: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, names.EXECUTOR):
            return await real(self, method_name, *args, **kwargs)
        with _inside_flow(self) as (progress, span):
            try:
                async with stoppable.boundary("node", f"{type(self).__name__}.{method_name}"):
                    return await real(self, method_name, *args, **kwargs)
            except stoppable.AgentStopped:
                await progress.check(span)  # CrewAI cancels the methods beside one that raises
                raise

    return execute


_method: CurrentSpan[Span] = CurrentSpan("stoppable-crewai-method")
_executing: dict[tuple[int, int], tuple[TurnProgress[Span], set[Span]]] = {}
"""The methods that are under way, by the ids of their flow and loop: one flow may be at work on several."""


@contextlib.contextmanager
def _inside_flow(flow: Any) -> Iterator[tuple[TurnProgress[Span], Span]]:
    key = id(flow), id(asyncio.get_running_loop())
    progress, spans = _executing.setdefault(key, (TurnProgress(_method), set()))
    span = Span(None)
    spans.add(span)
    try:
        with progress.inside(span):
            yield progress, span
    finally:
        spans.discard(span)
        if not spans:
            _executing.pop(key, None)


# Streams


def _init_stream(real: Callable[..., Any]) -> Callable[..., Any]:
    """Let the reader of a stream learn of a stop: CrewAI ends the stream then, as if it were complete."""

    def init(self: Any, sync_iterator: Any = None, async_iterator: Any = None) -> None:
        real(
            self,
            sync_iterator=None if sync_iterator is None else _read(sync_iterator),
            async_iterator=None if async_iterator is None else _read_async(async_iterator),
        )

    return init


def _create_generator(real: Callable[..., Any]) -> Callable[..., Any]:
    """Let the thread behind a stream end quietly with a stop: its reader raises it."""

    def create(state: Any, run_func: Callable[[], Any], output_holder: Any) -> Any:
        return real(state, functools.partial(_until_stopped, run_func), output_holder)

    return create


def _until_stopped(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except stoppable.AgentStopped:
        return None


def _read(items: Generator[Any, Any, Any]) -> Iterator[Any]:
    with contextlib.closing(items):
        yield from items
    stoppable.check()


async def _read_async(items: AsyncGenerator[Any, Any]) -> AsyncIterator[Any]:
    async with contextlib.aclosing(items):
        async for item in items:
            yield item
    stoppable.check()


# Threads of CrewAI, and waits


def _emit(real: Callable[..., Any]) -> Callable[..., Any]:
    """Let no stop end the code that emits an event: an answer is complete when listeners are told of it."""
    call = _outside(real)

    def emit(self: Any, source: Any, event: Any) -> Any:
        try:
            return call(self, source, event)
        except stoppable.AgentStopped:  # which came since it was asked for: these listeners are not told
            return None

    return emit


def _outside(real: Callable[..., Any]) -> Callable[..., Any]:
    """Execute what follows a stop outside the run, if it is CrewAI's own: listeners of events, records, clean-up."""

    def call(*args: Any, **kwargs: Any) -> Any:
        run = stoppable.current_run()
        with stoppable.detached() if run is not None and run.token.stopped else contextlib.nullcontext():
            return real(*args, **kwargs)

    return call


def _start_for_all(real: Callable[..., Any]) -> Callable[..., Any]:
    """Let a thread belong to no run that goes on after the run that needed it first."""

    def start(self: Any) -> None:
        with stoppable.detached():
            real(self)

    return start


class _Time(ModuleType):
    """The module ``time``, as CrewAI uses it for rate limits."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep; a stop of the run ends it at once."""
        sync.sleep(seconds)


def _replace_waits() -> None:
    """Let a stop end the waits for a rate limit: that of a crew, and that of a provider before it is asked again."""
    rpm_controller.time = _Time("time")
    try:
        from crewai.llms import retry  # noqa: PLC0415 - older versions do not ask again
    except ImportError:
        return
    retry.run_with_rate_limit_retry.__kwdefaults__["sleep"] = sync.sleep
    retry.arun_with_rate_limit_retry.__kwdefaults__["sleep"] = stoppable.sleep

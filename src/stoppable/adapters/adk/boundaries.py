"""Makes model calls and tool calls of ADK boundaries, and stops agents between two events and on other servers.

The classes of ADK are wrapped once per process. This covers every runner, also one that an ``AgentTool`` makes without
the plugins of its caller. Outside a turn that stoppable started, each wrapper only calls what it wraps.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.tools.agent_tool import AgentTool

import stoppable
from stoppable.adapters._upstream import is_wrapped, mark, require
from stoppable.adapters.adk import names
from stoppable.adapters.adk.turns import AdkSpan, AdkTurn, as_child, current
from stoppable.adapters.conversation import Conversation, follow


def activate() -> None:
    """Wrap the classes of ADK, once."""
    require("google-adk", names.missing())
    _wrap(BaseAgent, "run_async", _agent)
    _wrap(BaseAgent, "run_live", _agent)
    _wrap(PluginManager, "run_before_tool_callback", _before_tool)
    for name in ("canonical_model", "canonical_live_model"):
        if (attribute := vars(LlmAgent).get(name)) is not None and not is_wrapped(attribute.fget):
            setattr(LlmAgent, name, property(mark(_model_property(attribute.fget), attribute.fget)))
    if names.NODE_RUNNER is not None:
        _wrap(names.NODE_RUNNER, "run", _node)
    aborted = vars(ReadonlyContext).get("is_aborted")
    if aborted is not None and not is_wrapped(aborted.fget):
        ReadonlyContext.is_aborted = property(mark(_is_aborted(aborted.fget), aborted.fget))


def _wrap(owner: type, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method in the class that defines it, unless that was done before."""
    defining = next((each for each in owner.__mro__ if name in vars(each)), None)
    if defining is None:
        return
    real = vars(defining)[name]
    if inspect.isfunction(real) and not is_wrapped(real):
        setattr(defining, name, mark(wrapper(real), real))


# Agents and nodes


def _agent(real: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, parent_context: Any) -> AsyncIterator[Any]:
        span = current.get()
        if span is None:
            return real(self, parent_context)  # type: ignore[no-any-return]
        if names.is_remote(self):
            _wrap(type(self), names.RESOLVE, follow_client)
        for toolset, method in names.makers_of_shared():
            _wrap(toolset, method, _outside_runs)
        span.turn.invocation_id = span.turn.invocation_id or parent_context.invocation_id
        steps = functools.partial(_steps, span.turn, self, functools.partial(real, self, parent_context))
        return as_child(span, self.name, steps) if _is_below(span) else steps()

    return run


async def _steps(turn: AdkTurn, agent: Any, iterate: Callable[[], Any]) -> AsyncIterator[Any]:
    """Yield the events of an agent; raises a stop between two of them, when the first is in the session."""
    span = turn.add(turn.span(agent))
    try:
        async with contextlib.aclosing(iterate()) as events:
            while True:
                await turn.check(span)
                try:
                    with current.use(span):
                        event = await anext(events)
                except StopAsyncIteration:
                    return
                with turn.suspended(span):
                    yield event
    finally:
        turn.end(span)


def _is_below(span: AdkSpan) -> bool:
    """Return whether an agent or node that begins here is a sub-agent; the first one of a run is the run itself."""
    return isinstance(span.target, names.NODE)


def _node(real: Callable[..., Any]) -> Callable[..., Any]:
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        span, node = current.get(), self._node
        if span is None or isinstance(node, BaseAgent):  # an agent has its own wrapper
            return await real(self, *args, **kwargs)
        await span.turn.check(span)
        with span.turn.inside(span.turn.span(node)):
            async with _around(node, is_below=_is_below(span)):
                return await real(self, *args, **kwargs)

    return run


def _around(node: Any, *, is_below: bool) -> contextlib.AbstractAsyncContextManager[Any]:
    if isinstance(node, names.FUNCTION_NODE):
        is_thread = goes_to_thread(getattr(node, "_func", None))
        return contextlib.nullcontext() if is_thread else stoppable.boundary("tool", node.name)
    if isinstance(node, names.WORKFLOW) and is_below:
        return stoppable.open_run(node.name)
    return contextlib.nullcontext()


def _outside_runs(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that makes what all runs share, such as an MCP server: it belongs to the toolset, not to this run.

    Its processes and tasks end with ``runner.close()``, as in plain ADK. The calls in it belong to the runs that make
    them.
    """

    async def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        with stoppable.detached():
            return await real(self, *args, **kwargs)

    return make


# Models


def _model_property(real: Callable[..., Any]) -> Callable[..., Any]:
    def model(self: Any) -> Any:
        llm = real(self)
        _wrap(type(llm), "generate_content_async", _generate)
        _wrap(type(llm), "connect", _connect)
        return llm

    return model


def _generate(real: Callable[..., Any]) -> Callable[..., Any]:
    async def generate_content_async(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        span = current.get()
        if span is None or span.target is self:  # a class that calls the method of its base
            async with contextlib.aclosing(real(self, *args, **kwargs)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        turn = span.turn
        await turn.check(span)
        call = turn.add(turn.span(self))
        try:
            with contextlib.ExitStack() as flight:
                flight.enter_context(stoppable.boundary("llm", self.model))
                async with contextlib.aclosing(real(self, *args, **kwargs)) as chunks:
                    while True:
                        try:
                            with current.use(call):
                                chunk = await anext(chunks)
                        except StopAsyncIteration:
                            return
                        if not chunk.partial:  # ADK calls tools before it asks for more: no call is in flight then
                            flight.close()
                        with turn.suspended(call):
                            yield chunk
        finally:
            turn.end(call)

    return generate_content_async


def _connect(real: Callable[..., Any]) -> Callable[..., Any]:
    @contextlib.asynccontextmanager
    async def connect(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with stoppable.boundary("llm", f"{self.model} live") if current.get() else contextlib.nullcontext():
            async with real(self, *args, **kwargs) as connection:
                yield connection

    return connect


# Tools


def _before_tool(real: Callable[..., Any]) -> Callable[..., Any]:
    async def run_before_tool_callback(self: Any, *, tool: Any, tool_args: Any, tool_context: Any) -> Any:
        _wrap(type(tool), "run_async", _tool)
        if (span := current.get()) is not None:
            await span.turn.check(span)
        return await real(self, tool=tool, tool_args=tool_args, tool_context=tool_context)

    return run_before_tool_callback


def _tool(real: Callable[..., Any]) -> Callable[..., Any]:
    async def run_async(self: Any, *, args: Any, tool_context: Any) -> Any:
        span = current.get()
        if span is None or span.target is self:
            return await real(self, args=args, tool_context=tool_context)
        await span.turn.check(span)
        unsaved, call_id = span.turn.unsaved, tool_context.function_call_id
        with span.turn.inside(span.turn.span(self)):
            async with _flight(self):
                unsaved.begin(call_id)
                result = await real(self, args=args, tool_context=tool_context)
                unsaved.finish(call_id, result)
                return result

    return run_async


@contextlib.asynccontextmanager
async def _flight(tool: Any) -> AsyncIterator[None]:
    """Wrap a tool call in a boundary, and an agent that is called as a tool in a child run."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(tool, AgentTool):
            await stack.enter_async_context(stoppable.open_run(tool.name))
        elif not goes_to_thread(getattr(tool, "func", None)):
            await stack.enter_async_context(stoppable.boundary("tool", tool.name))
        yield


def goes_to_thread(function: Any) -> bool:
    """Return whether a tool's function runs on a thread. Its boundary is there too, because it may outlive the wait."""
    if function is None or names.SYNC_RUNNER.get() is not in_thread:
        return False
    call = function if inspect.isroutine(function) else getattr(function, "__call__", None)  # noqa: B004
    return not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call))


async def in_thread(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Execute a sync tool on a thread that belongs to the run, so that it cannot block the event loop."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return await stoppable.to_thread(functools.partial(stoppable.boundary("tool", name)(function), **kwargs))


def _is_aborted(real: Callable[..., Any]) -> Callable[..., Any]:
    def is_aborted(self: Any) -> bool:
        return bool(real(self)) or (current.get() is not None and stoppable.should_stop())

    return is_aborted


_logger = logging.getLogger("stoppable.adapters.adk")


def follow_client(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that makes the client of a RemoteA2aAgent, so that a stop of a run reaches the client's tasks."""

    async def resolve(self: Any, *args: Any, **kwargs: Any) -> Any:
        resolved_client = await real(self, *args, **kwargs)
        client = names.client_of(self) if resolved_client is None else resolved_client
        if client is not None:
            _client_follower()(client, name=self.name, url=names.address_of(self))
        return resolved_client

    return resolve


@functools.cache
def _client_follower() -> Callable[..., Any]:
    """Return the function that makes tasks of the installed a2a-sdk nodes; only apps with such an agent need it."""
    try:
        from stoppable.adapters import a2a  # noqa: PLC0415
    except ImportError:
        pass
    else:
        return a2a.client
    try:
        from stoppable.adapters.adk import old_client  # noqa: PLC0415
    except ImportError:
        _logger.warning("a stop cannot be passed on to a RemoteA2aAgent: that needs a2a-sdk 0.3, or 1.3 and newer")
        return _unreachable
    return old_client.client


def _unreachable(client: Any, *, name: str, url: str | None = None) -> Any:
    """Make tasks nodes whose end is seen, but which cannot be stopped."""
    return follow(client, lambda events, _, __: Conversation(events, name, url=url))

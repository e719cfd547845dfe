"""The names of Strands that this adapter replaces or that are undocumented.

Everything private is here, so that one function can say what a version lacks (``missing``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoppable.adapters import _upstream
from stoppable.adapters._upstream import find

_FUNCTIONS = {
    "strands:Agent.stream_async": ("self", "prompt", ..., "cancel_signal"),
    "strands:Agent.cancel": ("self",),
    "strands:Agent.take_snapshot": ("self", "preset", "include"),
    "strands:Agent.load_snapshot": ("self", "snapshot"),
    "strands:Agent.add_hook": ("self", "callback", "event_type", "order"),
    "strands.hooks:HookRegistry.invoke_callbacks_async": ("self", "event"),
    "strands.interrupt:_InterruptState.deactivate": ("self",),
    "strands.multiagent.graph:Graph.stream_async": ("self", "task", "invocation_state"),
    "strands.multiagent:Swarm.stream_async": ("self", "task", "invocation_state"),
}
"""What is wrapped or called, with the parameters that the adapter relies on."""

_ATTRIBUTES = {
    "strands.agent.agent": ("self._middleware_registry = ", "self._interrupt_state = ", "self._session_manager = "),
    "strands.event_loop.event_loop": ("_middleware_registry.invoke(", "InvokeModelStage,"),
    "strands.tools.executors._executor": ("_middleware_registry.invoke(", "ExecuteToolStage,"),
}
"""What nothing but the source of a module shows."""


# public since 1.62
MODEL_STAGE: Any = find("strands.middleware:InvokeModelStage") or find("strands._middleware.stages:InvokeModelStage")
"""The stage of the middleware that calls a model."""

TOOL_STAGE: Any = find("strands.middleware:ExecuteToolStage") or find("strands._middleware.stages:ExecuteToolStage")
"""The stage that executes one tool call."""

ToolResultEvent: Any = find("strands.middleware:ToolResultEvent") or find("strands.types._events:ToolResultEvent")
"""The last event of a tool call."""


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed version does not have."""
    stages = [f"strands.middleware:{name}" for name, value in _stages().items() if value is None]
    return _upstream.missing(_FUNCTIONS, _ATTRIBUTES) + stages


def _stages() -> dict[str, Any]:
    return {"InvokeModelStage": MODEL_STAGE, "ExecuteToolStage": TOOL_STAGE, "ToolResultEvent": ToolResultEvent}


def add_middleware(agent: Any, stage: Any, handler: Callable[..., Any]) -> None:
    """Let a handler wrap a stage of an agent; ``Agent.add_middleware`` exists since 1.62."""
    agent._middleware_registry.add_middleware(stage, handler)


def end_interrupts(agent: Any) -> None:
    """Forget the questions of an agent to its user: the tool calls that asked them are answered."""
    if agent._interrupt_state.activated:
        agent._interrupt_state.deactivate()


def saves_its_session(agent: Any) -> bool:
    """Return whether an agent has a session manager, so that it has one conversation only."""
    return agent._session_manager is not None

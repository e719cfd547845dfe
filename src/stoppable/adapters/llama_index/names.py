"""The names of LlamaIndex that this adapter replaces or that are undocumented.

Everything private is here, so that one function can say what a version lacks (``missing``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from workflows.events import WorkflowCancelledEvent

from stoppable.adapters import _upstream
from stoppable.adapters._upstream import find

_AGENTS = (
    "llama_index.core.agent.workflow.base_agent:BaseWorkflowAgent",
    "llama_index.core.agent.workflow.multi_agent_workflow:AgentWorkflow",
)
_FUNCTIONS = {
    "workflows:Workflow.run": ("self", "ctx", "start_event"),
    **{f"{agent}.call_tool": ("self", "ctx", "ev") for agent in _AGENTS},
    f"{_AGENTS[0]}.take_step": ("self", "ctx", "llm_input", "tools", "memory"),
}
"""What is wrapped or called, with the first parameters that the adapter relies on."""

_ATTRIBUTES = {
    "workflows.handler": ("self._result_task = ", "self._external_adapter = "),
    "workflows.context.context": ("self._face = ",),
    "workflows.context.external_context": ("_serializer: ",),
    "workflows.plugins.basic": ("self._queues = ", "def publish_queue("),
    "workflows.runtime.types.step_function": ("getattr(workflow, step_name)", "._step_config"),
    "llama_index.core.agent.workflow.function_agent": ("scratchpad_key: str",),
    "llama_index.core.agent.workflow.codeact_agent": ("scratchpad_key: str",),
    "llama_index.core.agent.workflow.react_agent": ("reasoning_key: str",),
}
"""What nothing but the source of a module shows."""


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed packages do not have."""
    loop = [] if LOOP is not None else ["workflows.runtime.control_loop:_ControlLoopRunner"]
    return _upstream.missing(_FUNCTIONS, _ATTRIBUTES) + loop


LOOP: Any = find("workflows.runtime.control_loop.runner:_ControlLoopRunner") or find(
    "workflows.runtime.control_loop:_ControlLoopRunner"
)
"""The control loop of a workflow: it starts the steps, and its ``run`` returns or raises what the workflow does."""


def steps_of(workflow: Any) -> Iterator[tuple[type, str]]:
    """Yield the classes that define steps of a workflow, with the names of the steps."""
    for kind in type(workflow).__mro__:
        for name, value in vars(kind).items():
            if hasattr(value, "_step_config"):
                yield kind, name


def when_done(handler: Any, callback: Callable[[asyncio.Task[Any]], object]) -> None:
    """Call back with the finished task of a workflow."""
    handler._result_task.add_done_callback(callback)


def end_stream(handler: Any) -> None:
    """End the event stream of a workflow: LlamaIndex leaves it open if a step raises what is no ``Exception``."""
    queues = getattr(handler._external_adapter, "_queues", None)
    if queues is not None:  # a runtime that keeps runs elsewhere ends its streams itself
        queues.publish_queue.put_nowait(WorkflowCancelledEvent())


def forget_steps(ctx: Any, workflow: Any) -> None:
    """Make a context that was stopped one that has ended, with its state: LlamaIndex would repeat the steps in it."""
    face = ctx._face
    data = {"version": 1, "state": ctx.to_dict()["state"]}
    ctx._face = type(ctx).from_dict(workflow, data, serializer=face._serializer)._face

"""The names of openai-agents that this adapter replaces or relies on; the SDK calls its runner experimental."""

from __future__ import annotations

from stoppable.adapters import _upstream

_FUNCTIONS = {
    "agents.run:AgentRunner.run": ("self", "starting_agent", "input", "kwargs"),
    "agents.run:AgentRunner.run_streamed": ("self", "starting_agent", "input", "kwargs"),
    "agents:Model.get_response": ("self",),
    "agents:Model.stream_response": ("self",),
    "agents:RunHooks.on_llm_start": ("self", "context", "agent", "system_prompt", "input_items"),
    "agents:RunHooks.on_llm_end": ("self", "context", "agent", "response"),
    "agents:RunHooks.on_tool_start": ("self", "context", "agent", "tool"),
    "agents:RunHooks.on_tool_end": ("self", "context", "agent", "tool", "result"),
    "agents:ModelResponse.to_input_items": ("self",),
    "agents.result:RunResultStreaming.stream_events": ("self",),
    "agents.tool_context:ToolContext.from_agent_context": ("context",),
}
"""What is wrapped or called, with the first parameters that the adapter relies on."""


def missing() -> list[str]:
    """Return the names that the adapter needs and the installed version does not have."""
    return _upstream.missing(_FUNCTIONS)

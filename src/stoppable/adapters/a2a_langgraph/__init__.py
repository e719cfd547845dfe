"""A LangGraph graph behind A2A: ``LangGraphAgentExecutor(graph, supervisor)``."""

from __future__ import annotations

from stoppable.adapters.a2a_langgraph.executor import LangGraphAgentExecutor, Metrics

__all__ = ["LangGraphAgentExecutor", "Metrics"]

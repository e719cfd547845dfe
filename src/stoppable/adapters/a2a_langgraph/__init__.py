"""A LangGraph graph behind A2A: ``LangGraphAgentExecutor(graph, supervisor)``."""

from __future__ import annotations

from stoppable.adapters.a2a_langgraph.executor import LangGraphAgentExecutor, Metrics, thread_of

__all__ = ["LangGraphAgentExecutor", "Metrics", "thread_of"]

"""Which text is internal to a graph, and never an answer: summaries, guards, and what models say inside tools."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.constants import TAG_NOSTREAM
from langgraph.prebuilt import ToolNode

_HOOKS = (
    ".before_agent",
    ".before_model",
    ".after_model",
    ".after_agent",
)  # nodes that create_agent makes of middleware
_MARKS = {"lc_source", "lc_internal_call"}  # in the metadata of a call that middleware makes


def is_internal_node(name: str) -> bool:
    """Return whether a node is middleware, which changes a turn and does not answer."""
    return name.endswith(_HOOKS)


def is_internal_call(model: Any, tags: Any, metadata: Any, callbacks: Any) -> bool:
    """Return whether a call of a model is marked: by middleware, or with the tag that keeps it out of streams."""
    all_tags = {*(tags or ()), *(model.tags or ()), *getattr(callbacks, "tags", ())}
    marks = {*(metadata or ()), *(model.metadata or ()), *getattr(callbacks, "metadata", ())}
    return TAG_NOSTREAM in all_tags or not marks.isdisjoint(_MARKS)


def is_answer(graph: Any, message: Any, metadata: dict[str, Any]) -> bool:
    """Return whether an item of the stream mode ``messages`` is text of an answer."""
    if not isinstance(message, AIMessage) or not message.text or not _MARKS.isdisjoint(metadata):
        return False
    name = str(metadata.get("langgraph_node", ""))
    node = graph.nodes.get(name)
    return not is_internal_node(name) and not isinstance(getattr(node, "bound", None), ToolNode)

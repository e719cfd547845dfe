"""The undocumented names of langgraph and langchain-core that this adapter needs.

Everything private is here, so that one test can say what a new version lacks (``missing``).
"""

from __future__ import annotations

from typing import Any

from stoppable.adapters import _upstream
from stoppable.adapters._upstream import find

RUNNER: Any = find("langgraph.pregel:_runner")
"""The module that executes nodes, with its own references to ``run_with_retry`` and ``arun_with_retry``."""

RETRY: Any = find("langgraph.pregel:_retry")
"""The module that calls ``_should_retry_on`` to decide whether a failed node is executed again."""

STREAMING: Any = find("langgraph.pregel:main")
"""The module of ``Pregel.stream`` and ``astream``, which take what they yield out of a queue with ``_output``."""

TASK_ID: Any = find("langgraph._internal._constants:CONFIG_KEY_TASK_ID")
"""In the configuration of whatever a node calls."""

CHECKPOINTER: Any = find("langgraph._internal._constants:CONFIG_KEY_CHECKPOINTER")
"""In the same, if the graph has a checkpointer."""

_PREFIX = "__pregel_"
_FUNCTIONS = {
    "langgraph.pregel._runner:run_with_retry": ("task", "retry_policy"),
    "langgraph.pregel._runner:arun_with_retry": ("task", "retry_policy"),
    "langgraph.pregel._retry:_should_retry_on": ("retry_policy", "exc"),
    "langgraph.pregel.main:_output": ("stream_mode", "print_mode", "stream_subgraphs", "getter", "empty_exc"),
    "langchain_core.language_models:BaseChatModel.generate": ("self",),
    "langchain_core.language_models:BaseChatModel.agenerate": ("self",),
    "langchain_core.language_models:BaseChatModel.stream": ("self",),
    "langchain_core.language_models:BaseChatModel.astream": ("self",),
    "langchain_core.language_models:BaseChatModel._stream": ("self",),
    "langchain_core.language_models:BaseChatModel._astream": ("self",),
    "langchain_core.tools:BaseTool.run": ("self",),
    "langchain_core.tools:BaseTool.arun": ("self",),
    "langgraph.pregel:Pregel.invoke": ("self", "input", "config"),
    "langgraph.pregel:Pregel.ainvoke": ("self", "input", "config"),
    "langgraph.pregel:Pregel.stream": ("self", "input", "config"),
    "langgraph.pregel:Pregel.astream": ("self", "input", "config"),
}
"""What is wrapped, with the first parameters that the wrappers rely on."""


def thread_config(config: Any) -> dict[str, Any]:
    """Return the configuration for the newest state of a thread, without anything of the call it came from."""
    configurable = {
        name: value
        for name, value in config.get("configurable", {}).items()
        if name == CHECKPOINTER or not (name.startswith(_PREFIX) or name in {"checkpoint_id", "checkpoint_map"})
    }
    return {"configurable": configurable}


def persistent_config(config: Any) -> dict[str, Any]:
    """Return the same for a subgraph with ``checkpointer=True``: its namespace has no ids of tasks."""
    configurable = thread_config(config)["configurable"]
    parts = configurable.get("checkpoint_ns", "").split("|")
    return {"configurable": {**configurable, "checkpoint_ns": "|".join(part.split(":")[0] for part in parts)}}


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed packages do not have."""
    constants = {"CONFIG_KEY_TASK_ID": TASK_ID, "CONFIG_KEY_CHECKPOINTER": CHECKPOINTER}
    return _upstream.missing(_FUNCTIONS) + [
        name for name, value in constants.items() if not str(value).startswith(_PREFIX)
    ]

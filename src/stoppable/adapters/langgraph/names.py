"""The undocumented names of langgraph and langchain-core that this adapter needs.

Everything private is here, so that one test can say what a new version lacks (``missing``).
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any


def _found(path: str) -> Any:
    """Return a name, or None in a version that does not have it."""
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        return None
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


RUNNER: Any = _found("langgraph.pregel:_runner")
"""The module that executes nodes, with its own references to ``run_with_retry`` and ``arun_with_retry``."""

RETRY: Any = _found("langgraph.pregel:_retry")
"""The module that calls ``_should_retry_on`` to decide whether a failed node is executed again."""

STREAMING: Any = _found("langgraph.pregel:main")
"""The module of ``Pregel.stream`` and ``astream``, which take what they yield out of a queue with ``_output``."""

TASK_ID: Any = _found("langgraph._internal._constants:CONFIG_KEY_TASK_ID")
"""In the configuration of whatever a node calls."""

CHECKPOINTER: Any = _found("langgraph._internal._constants:CONFIG_KEY_CHECKPOINTER")
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
    kept = {
        name: value
        for name, value in config.get("configurable", {}).items()
        if name == CHECKPOINTER or not (name.startswith(_PREFIX) or name in {"checkpoint_id", "checkpoint_map"})
    }
    return {"configurable": kept}


def persistent_config(config: Any) -> dict[str, Any]:
    """Return the same for a subgraph with ``checkpointer=True``: its namespace has no ids of tasks."""
    kept = thread_config(config)["configurable"]
    parts = kept.get("checkpoint_ns", "").split("|")
    return {"configurable": {**kept, "checkpoint_ns": "|".join(part.split(":")[0] for part in parts)}}


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed packages do not have."""
    lacking = [path for path, first in _FUNCTIONS.items() if _parameters(path)[: len(first)] != first]
    constants = {"CONFIG_KEY_TASK_ID": TASK_ID, "CONFIG_KEY_CHECKPOINTER": CHECKPOINTER}
    return lacking + [name for name, value in constants.items() if not str(value).startswith(_PREFIX)]


def _parameters(path: str) -> tuple[str, ...]:
    found = _found(path)
    return tuple(inspect.signature(found).parameters) if callable(found) else ()

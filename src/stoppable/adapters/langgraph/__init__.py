"""LangGraph: stop a graph anywhere and keep its thread usable, with unmodified langgraph 1.0 and later.

``stoppable_graph(graph)`` makes every call of a compiled graph a run. ``instrument()`` does it for all graphs that are
called inside a run. ``repair(graph, config)`` repairs a thread that was broken before.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import langgraph as _langgraph  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"langgraph is not installed: {_pip_install('langgraph')}", name=_error.name) from _error

from stoppable.adapters.langgraph.agents import as_agent, stoppable_graph
from stoppable.adapters.langgraph.graphs import instrument
from stoppable.adapters.langgraph.sealing import arepair, repair
from stoppable.adapters.langgraph.turns import key_of

__all__ = ["arepair", "as_agent", "instrument", "key_of", "repair", "stoppable_graph"]

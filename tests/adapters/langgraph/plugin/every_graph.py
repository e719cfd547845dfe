"""A plugin for pytest: every graph of the process is a ``stoppable_graph``, and so each call of it is a run."""

from langgraph.func import entrypoint
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from stoppable.adapters._upstream import wrap
from stoppable.adapters.langgraph import instrument, stoppable_graph
from stoppable.adapters.langgraph.turns import ATTRIBUTE, DEFAULT


def _stoppable(make):
    return lambda *args, **kwargs: stoppable_graph(make(*args, **kwargs))


wrap(StateGraph, "compile", _stoppable)  # create_agent and create_react_agent call it too
wrap(entrypoint, "__call__", _stoppable)
setattr(Pregel, ATTRIBUTE, DEFAULT)  # for graphs that a test puts together by hand
instrument()

"""Strands Agents: a stop reaches every agent, sub-agent, graph and swarm, and their messages are complete afterwards.

``install()`` once per process is all that a program needs. Outside a run nothing changes.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import strands as _strands  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"strands-agents is not installed: {_pip_install('strands')}", name=_error.name) from _error

from stoppable.adapters.strands.agents import install
from stoppable.adapters.strands.serving import as_agent

__all__ = ["as_agent", "install"]

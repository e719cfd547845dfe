"""smolagents: a stop reaches every agent, its tools and its team, and the memory of the stopped turn is complete.

``install()`` once per process is all that a program needs. Outside a run nothing changes.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import smolagents as _smolagents  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"smolagents is not installed: {_pip_install('smolagents')}", name=_error.name) from _error

from stoppable.adapters.smolagents.agents import as_agent
from stoppable.adapters.smolagents.runs import install

__all__ = ["as_agent", "install"]

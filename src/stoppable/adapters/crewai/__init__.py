"""CrewAI: a stop reaches crews, agents, flows and their tools, and what a stopped agent has done can be continued.

``install()`` once per process is all that a program needs. Outside a run nothing changes.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import crewai as _crewai  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"crewai is not installed: {_pip_install('crewai')}", name=_error.name) from _error

from stoppable.adapters.crewai.patches import install
from stoppable.adapters.crewai.serving import as_agent

__all__ = ["as_agent", "install"]

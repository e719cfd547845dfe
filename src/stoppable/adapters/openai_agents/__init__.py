"""openai-agents: a stop reaches every runner, model and tool, and the session of the stopped turn is complete.

``install()`` once per process is all that a program needs. Outside a run nothing changes.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    from agents import Agent as _Agent  # noqa: F401 - another package may have the name ``agents``
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"openai-agents is not installed: {_pip_install('openai-agents')}", name=_error.name) from _error

from stoppable.adapters.openai_agents.runners import install
from stoppable.adapters.openai_agents.serving import as_agent

__all__ = ["as_agent", "install"]

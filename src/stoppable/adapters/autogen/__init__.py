"""AutoGen AgentChat: a stop reaches every agent and team, and the model context of the stopped turn is complete.

``install()`` once per process is all that a program needs. Outside a run nothing changes.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import autogen_agentchat as _autogen_agentchat  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"autogen-agentchat is not installed: {_pip_install('autogen')}", name=_error.name) from _error

from stoppable.adapters.autogen.patches import install
from stoppable.adapters.autogen.serving import as_agent

__all__ = ["as_agent", "install"]

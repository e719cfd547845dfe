"""Microsoft Agent Framework: stop an agent anywhere and keep its session usable, with unmodified agent-framework.

``Agent(…, middleware=[Stoppable()])`` makes the model calls and tools of an agent boundaries of the run that calls it,
and completes the history of its session after a stop.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import agent_framework as _agent_framework  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(
        f"agent-framework is not installed: {_pip_install('agent-framework')}", name=_error.name
    ) from _error

from stoppable.adapters.agent_framework.agents import as_agent
from stoppable.adapters.agent_framework.middleware import Stoppable

__all__ = ["Stoppable", "as_agent"]

"""ACP, the Agent Client Protocol: an agent in an editor, and the agents of others as parts of a run.

``stoppable acp`` serves an agent to an editor, whose cancel is a stop. ``agent("command …")`` is an agent that another
one executes, in a process that a stop ends.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import acp as _acp  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"agent-client-protocol is not installed: {_pip_install('acp')}", name=_error.name) from _error

from stoppable.adapters.acp.client import agent

__all__ = ["agent"]

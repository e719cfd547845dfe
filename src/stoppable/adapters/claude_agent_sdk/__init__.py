"""Claude Agent SDK: a stop ends the turn of Claude Code, its tools, sub-agents and processes, and its session goes on.

``install()`` once per process is all that a program needs. Outside a run nothing changes.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import claude_agent_sdk as _claude_agent_sdk  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(
        f"claude-agent-sdk is not installed: {_pip_install('claude-agent-sdk')}", name=_error.name
    ) from _error

from stoppable.adapters.claude_agent_sdk.patches import install
from stoppable.adapters.claude_agent_sdk.serving import as_agent

__all__ = ["as_agent", "install"]

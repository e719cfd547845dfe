"""OpenHands: interrupts that reach every tool, on unmodified openhands-sdk.

``supervise(conversation)`` is for one conversation, ``install()`` for all of a process, also those of agent-server.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import openhands.sdk as _sdk  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(
        f"openhands-sdk is not installed: {_pip_install('openhands')}, with Python 3.12 or newer",
        name=_error.name,
    ) from _error

from stoppable.adapters.openhands.patches import install, run_of, supervise, tool_calls

__all__ = ["install", "run_of", "supervise", "tool_calls"]

"""The names of the Claude Agent SDK that this adapter replaces or that are undocumented.

Everything private is here, so that one function can say what a version lacks (``missing``).
"""

from __future__ import annotations

from typing import Any

from claude_agent_sdk._internal import query
from claude_agent_sdk._internal.transport import subprocess_cli

from stoppable.adapters import _upstream

Query: Any = query.Query
"""Talks to a CLI, for ``query()`` and for a client."""

SubprocessCLITransport: Any = subprocess_cli.SubprocessCLITransport
"""Starts a CLI."""

_CLI = "claude_agent_sdk._internal.transport.subprocess_cli"
_FUNCTIONS = {
    "claude_agent_sdk:ClaudeSDKClient.connect": ("self", "prompt"),
    "claude_agent_sdk:SdkMcpTool": (..., "handler"),
    "claude_agent_sdk._internal.query:Query.__init__": ("self", "transport", ..., "can_use_tool", "hooks"),
    "claude_agent_sdk._internal.query:Query.start": ("self",),
    "claude_agent_sdk._internal.query:Query.interrupt": ("self",),
    "claude_agent_sdk._internal.query:Query.stop_task": ("self", "task_id"),
    "claude_agent_sdk._internal.query:Query.receive_messages": ("self",),
    "claude_agent_sdk._internal.query:Query.close": ("self",),
    f"{_CLI}:SubprocessCLITransport.__init__": ("self", "prompt", "options"),
    f"{_CLI}:SubprocessCLITransport.connect": ("self",),
    f"{_CLI}:SubprocessCLITransport.write": ("self", "data"),
    f"{_CLI}:SubprocessCLITransport.read_messages": ("self",),
}
"""What is wrapped or called, with the parameters that the adapter relies on."""

_TEXTS = {
    "claude_agent_sdk._internal.query": (
        "in self.transport.read_messages()",
        "self._message_receive",
        "spawn_detached(self._read_messages())",
        '.get("hooks", [])',
    ),
    _CLI: (
        "self._process = await",
        "self._options.include_partial_messages",
    ),
    "claude_agent_sdk": ("await tool_def.handler(",),
}
"""What nothing but the source of a module shows."""


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed version does not have."""
    return _upstream.missing(_FUNCTIONS, _TEXTS)


def options_of(transport: Any) -> Any:
    """Return the options of a CLI; None if the transport is one of the user's."""
    return getattr(transport, "_options", None)


def pid_of(transport: Any) -> int | None:
    """Return the process id of a CLI that may be alive; None if there is none, or it is not the SDK that starts it."""
    process = getattr(transport, "_process", None)
    return None if process is None or process.returncode is not None else process.pid


def unread_messages(query: Any) -> Any:
    """Return the stream of the messages that nobody has read yet."""
    return query._message_receive

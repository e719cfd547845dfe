"""The undocumented names of openhands that this adapter needs.

Everything private is here, so that ``missing`` can say what a new version lacks.
"""

from __future__ import annotations

import inspect
from typing import Any

from openhands.sdk.agent.parallel_executor import ParallelToolExecutor
from openhands.sdk.conversation.cancellation import CancellationToken
from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.conversation.state import ConversationState
from openhands.sdk.llm import LLM

from stoppable.adapters._upstream import find

_SIGNATURES: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "LocalConversation.run": (LocalConversation, "run", ()),
    "LocalConversation.arun": (LocalConversation, "arun", ()),
    "LocalConversation.interrupt": (LocalConversation, "interrupt", ()),
    "LocalConversation.send_message": (LocalConversation, "send_message", ("message", "sender")),
    "LocalConversation.pause": (LocalConversation, "pause", ()),
    "LocalConversation.reject_pending_actions": (LocalConversation, "reject_pending_actions", ("reason",)),
    "LocalConversation.cancel_token": (LocalConversation, "cancel_token", ()),
    "LocalConversation._emit_orphaned_action_errors": (LocalConversation, "_emit_orphaned_action_errors", ()),
    "ConversationState.get_unmatched_actions": (ConversationState, "get_unmatched_actions", ()),
    "ConversationState.active_branch": (ConversationState, "active_branch", ()),
    "ConversationState.acquire": (ConversationState, "acquire", ("blocking",)),
    "LLM.generate": (LLM, "generate", ("messages",)),
    "LLM.agenerate": (LLM, "agenerate", ("messages",)),
    "LLM.retry_decorator": (LLM, "retry_decorator", ("num_retries",)),
    "ParallelToolExecutor.execute_batch": (
        ParallelToolExecutor,
        "execute_batch",
        ("action_events", "tool_runner", "tools", "cancel_token", "span_owner"),
    ),
    "ParallelToolExecutor.aexecute_batch": (
        ParallelToolExecutor,
        "aexecute_batch",
        ("action_events", "tool_runner", "tools", "cancel_token", "span_owner"),
    ),
    "ParallelToolExecutor._run_safe": (
        ParallelToolExecutor,
        "_run_safe",
        ("action", "tool_runner", "tool", "cancel_token", "span_owner"),
    ),
}


TERMINAL_SESSION: Any = find("openhands.tools.terminal.terminal.terminal_session:TerminalSession")
"""The class whose ``execute`` every command goes through; its ``terminal`` has the shell."""

TERMINAL_EXECUTOR: Any = find("openhands.tools.terminal.impl:TerminalExecutor")


MCP_CLIENT: Any = find("openhands.sdk.mcp.client:MCPClient")
MCP_SESSION: Any = find("mcp.shared.session:BaseSession")
"""The class of the package ``mcp`` that numbers requests."""
_MCP_TOOL_CALL: Any = find("mcp.types:CallToolRequest")


def portal_of(client: Any) -> Any:
    """Return what calls functions on the event loop of an MCP client."""
    return client._executor.portal


def is_tool_call(request: Any) -> bool:
    """Return whether a request to an MCP server calls a tool."""
    return isinstance(getattr(request, "root", request), _MCP_TOOL_CALL)


def missing_for_mcp() -> list[str]:
    """Return the names without which the tool calls of MCP servers cannot be cancelled."""
    required = {
        "MCPClient.call_async_from_sync": (MCP_CLIENT, "call_async_from_sync", ("awaitable_or_fn", "timeout")),
        "MCPClient.connect": (MCP_CLIENT, "connect", ()),
        "MCPClient.cancel": (MCP_CLIENT, "cancel", ("request_id", "reason")),
        "BaseSession.send_request": (MCP_SESSION, "send_request", ("request",)),
        "CallToolRequest": (_MCP_TOOL_CALL, "model_dump", ()),
    }
    lacking = [what for what, (owner, name, parameters) in required.items() if not _has(owner, name, parameters)]
    has_number = MCP_SESSION is not None and "_request_id" in inspect.getsource(MCP_SESSION)
    return lacking if has_number else [*lacking, "BaseSession._request_id"]


def limit_of(executor: Any) -> int:
    """Return how many tool calls an executor lets run at a time."""
    limit: int = executor._max_workers
    return limit


def tell(conversation: Any, event: Any) -> None:
    """Add an event to a conversation, and call its callbacks."""
    conversation._on_event(event)


def cancel_token(conversation: Any) -> None:
    """Cancel OpenHands' own token, as its interrupt() does; the adapter's ``conversation.cancel_token`` is another."""
    if conversation._cancel_token is None:  # a run that has ended has taken it away
        conversation._cancel_token = CancellationToken()
    conversation._cancel_token.cancel()


def answer_orphans(conversation: Any) -> None:
    """Answer each action that has no observation with an error; needs the lock of the state."""
    conversation._emit_orphaned_action_errors()


def run_safe(executor: Any, action: Any, runner: Any, tool: Any, conversation: Any) -> Any:
    """Execute a tool call under the locks that it declares; its errors become events."""
    return executor._run_safe(action, runner, tool, None, conversation)


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed openhands does not have."""
    return [
        what for what, (owner, name, parameters) in _SIGNATURES.items() if not _has(owner, name, parameters)
    ] + _missing_in_tools()


def _has(owner: Any, name: str, parameters: tuple[str, ...]) -> bool:
    attribute = inspect.getattr_static(owner, name, None)
    if isinstance(attribute, property):
        return not parameters
    if attribute is None:
        return False
    return set(parameters) <= set(inspect.signature(getattr(owner, name)).parameters)


def _missing_in_tools() -> list[str]:
    if find("openhands.tools.terminal:TerminalTool") is None:
        return []  # without openhands-tools there are no terminals
    required = {"TerminalSession.execute": getattr(TERMINAL_SESSION, "execute", None), "terminal": TERMINAL_EXECUTOR}
    return [what for what, value in required.items() if value is None]

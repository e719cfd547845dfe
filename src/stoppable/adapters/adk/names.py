"""The undocumented names of google-adk that this adapter needs, found by feature and not by version.

Everything private is here, so that one test can say what a new version lacks (``missing``).
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from google.adk.runners import Runner

from stoppable.adapters._upstream import find


def _find(path: str) -> Any:
    return find(f"google.adk.{path}")


def _first(*paths: str) -> Any:
    return next((value for path in paths if (value := _find(path)) is not None), None)


SYNC_RUNNER: Any = _first("utils._sync_runner:_SYNC_CALLABLE_RUNNER", "tools.function_tool:_SYNC_CALLABLE_RUNNER")
"""The context variable with the function that executes sync tools, called as ``await runner(function, kwargs)``."""

SERVER: Any = _first("cli.api_server:ApiServer", "cli.adk_web_server:AdkWebServer")
"""The class whose ``get_fast_api_app`` and ``get_runner_async`` the servers of ADK go through."""

NODE_RUNNER: Any = _find("workflow._node_runner:NodeRunner")  # 2.x
FUNCTION_NODE: Any = _find("workflow._function_node:FunctionNode")  # 2.x

HAS_ABORT = "abort_signal" in inspect.signature(Runner.run_async).parameters
WORKFLOW: Any = _find("workflow:Workflow")  # 2.x
NODE: Any = _first("workflow:BaseNode", "agents.base_agent:BaseAgent")
"""What can be a part of an agent: from 2.x on, agents are nodes too."""

RESOLVE = "_ensure_resolved"
"""The method of a RemoteA2aAgent that makes its client and, from 2.x on, returns it."""

_REMOTE_AGENTS = ("google.adk.a2a.agent._remote_a2a_agent", "google.adk.agents.remote_a2a_agent")  # 2.13 has both

_SHARED = (
    ("google.adk.tools.mcp_tool.mcp_session_manager", "MCPSessionManager", "create_session"),
    ("google.adk.tools.computer_use.computer_use_toolset", "ComputerUseToolset", "_ensure_initialized"),
)
"""The methods that make what a toolset keeps for all runs: module, class, method."""

_public_event: Any = _find("events._internal_metadata:public_event")
_redact: Any = _find("auth.auth_credential:_redact_credential_secrets")


def wire_event(event: Any) -> dict[str, Any]:
    """Return an event as ADK's own server sends it: camelCase, without nulls and without secrets."""
    if _public_event is not None:
        event = _public_event(event)
    fields: dict[str, Any] = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    return fields if _redact is None else dict(_redact(fields))


def is_remote(agent: Any) -> bool:
    """Return whether an agent is a RemoteA2aAgent; its module is not imported here, since it needs a2a-sdk."""
    kinds = (getattr(sys.modules.get(module), "RemoteA2aAgent", None) for module in _REMOTE_AGENTS)
    return any(kind is not None and isinstance(agent, kind) for kind in kinds)


def makers_of_shared() -> list[tuple[type, str]]:
    """Return the methods in ``_SHARED`` whose modules are imported: they need packages that not every app has."""
    classes = ((getattr(sys.modules.get(module), name, None), method) for module, name, method in _SHARED)
    return [(kind, method) for kind, method in classes if kind is not None]


def client_of(agent: Any) -> Any:
    """Return the client that a RemoteA2aAgent of 1.x keeps, or None before it has one."""
    return agent._a2a_client


def address_of(agent: Any) -> str | None:
    """Return where a RemoteA2aAgent sends its messages, or None if it has a different card for each invocation."""
    card = agent._agent_card
    interfaces = getattr(card, "supported_interfaces", None)
    return interfaces[0].url if interfaces else getattr(card, "url", None)


def server_of(app: Any) -> Any:
    """Return ADK's server object behind an app, which only the handlers of its routes hold."""
    for route in app.router.routes:
        if getattr(route, "path", None) == "/run":
            server = inspect.getclosurevars(route.endpoint).nonlocals.get("self")
            if hasattr(server, "get_runner_async"):
                return server
    raise ValueError("this is not the app of an ADK server: pass what google.adk's get_fast_api_app returned")


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed google-adk does not have."""
    required = {"the runner of sync tools": SYNC_RUNNER, "the class of the server": SERVER}
    if WORKFLOW is not None:
        required |= {"the runner of nodes": NODE_RUNNER, "function nodes": FUNCTION_NODE}
    if HAS_ABORT:
        required |= {"public_event": _public_event, "_redact_credential_secrets": _redact}
    return [what for what, value in required.items() if value is None]

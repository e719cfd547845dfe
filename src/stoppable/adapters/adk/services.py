"""Session services whose calls a stop does not cut."""

from __future__ import annotations

from typing import Any

from google.adk.sessions.in_memory_session_service import InMemorySessionService

from stoppable.adapters._whole_calls import whole

_METHODS = ("append_event", "create_session", "get_session")
_MARK = "_stoppable"


def protect(service: Any) -> None:
    """Let the calls of a session service come to their end; changes the service, once."""
    if type(service) is InMemorySessionService or hasattr(service, _MARK):  # that one never waits
        return
    setattr(service, _MARK, True)
    for name in _METHODS:
        setattr(service, name, whole(getattr(service, name), service))

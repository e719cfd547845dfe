"""The one name of Pydantic AI that this adapter needs and that begins with an underscore."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic_ai.models import StreamedResponse

_EVENTS = "_get_event_iterator"


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed version does not have."""
    return (
        [] if callable(getattr(StreamedResponse, _EVENTS, None)) else [f"pydantic_ai.models:StreamedResponse.{_EVENTS}"]
    )


def wrap_events(response: Any, wrapper: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
    """Let a wrapper yield the events of one response, which every model class produces in a method of its own."""
    events = getattr(response, _EVENTS)
    setattr(response, _EVENTS, lambda: wrapper(events()))

"""Turns objects of agent frameworks into agents, with the installed adapters."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from types import FunctionType
from typing import Any

GROUP = "stoppable.agents"
"""The entry points of adapters: the name is a package, the object a function ``(value, name) -> agent``."""


def recognised(value: Any, name: str | None = None) -> Callable[..., Any] | None:
    """Return the agent that an adapter makes of an object, or None if there is no adapter for it.

    An adapter handles objects whose class, or one of its base classes, is defined in the package that its entry point
    is named after. Finding the adapter imports nothing.
    """
    if isinstance(value, FunctionType | type):
        return None
    packages = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    for entry in entry_points(group=GROUP):
        if entry.name in packages:
            agent: Callable[..., Any] = entry.load()(value, name)
            return agent
    return None

"""Agents on other A2A servers: each of their tasks is a node of the run's tree, and is cancelled with it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from stoppable.adapters.adk import names
from stoppable.adapters.conversation import Conversation, follow

_logger = logging.getLogger("stoppable.adapters.adk")


def following(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that makes the client of a RemoteA2aAgent, so that a stop of a run reaches the client's tasks."""

    async def resolve(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = await real(self, *args, **kwargs)
        client = names.client_of(self) if made is None else made
        if client is not None:
            _follow()(client, name=self.name, url=names.address_of(self))
        return made

    return resolve


@functools.cache
def _follow() -> Callable[..., Any]:
    """Return the function that makes tasks of the installed a2a-sdk nodes; only apps with such an agent need it."""
    try:
        from stoppable.adapters import a2a  # noqa: PLC0415
    except ImportError:
        pass
    else:
        return a2a.client
    try:
        from stoppable.adapters.adk import old_client  # noqa: PLC0415
    except ImportError:
        _logger.warning("a stop cannot be passed on to a RemoteA2aAgent: that needs a2a-sdk 0.3, or 1.3 and newer")
        return _unreachable
    return old_client.client


def _unreachable(client: Any, *, name: str, url: str | None = None) -> Any:
    """Make tasks nodes whose end is seen, but which cannot be stopped."""
    return follow(client, lambda events, _, __: Conversation(events, name, url=url))

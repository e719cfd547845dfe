"""Agents on other A2A servers: each of their tasks is a node of the run's tree, and is cancelled with it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from stoppable.adapters.adk import names

_logger = logging.getLogger("stoppable.adapters.adk")


def following(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that gives a RemoteA2aAgent its client, whose tasks the stop of a run reaches."""

    async def resolve(self: Any, *args: Any, **kwargs: Any) -> Any:
        follow = _follow()
        client = await real(self, *args, **kwargs)
        if follow is not None:
            follow(client, name=self.name, url=names.address_of(self))
        return client

    return resolve


@functools.cache  # and so it warns once
def _follow() -> Callable[..., Any] | None:
    try:
        from stoppable.adapters import a2a  # noqa: PLC0415 - only apps that have such an agent need it
    except ImportError:
        _logger.warning(
            "a stop does not reach the tasks of a RemoteA2aAgent: that needs a2a-sdk 1.3 and google-adk 2.8, or newer"
        )
        return None
    return a2a.client

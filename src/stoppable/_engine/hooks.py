"""Async hooks: tasks of the event loop that they were registered on."""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable
from typing import Any

from stoppable.errors import InvalidArgument

_logger = logging.getLogger("stoppable")

_running: set[Task[None]] = set()  # asyncio itself keeps only a weak reference to a task


def in_loop(function: Callable[..., Any]) -> Callable[..., object]:
    """Return a plain function that runs an async one on the event loop of the caller."""
    loop = asyncio._get_running_loop()
    if loop is None:
        raise InvalidArgument(
            f"{function!r} is async and no event loop is running: pass a plain function, which is called on a "
            "separate thread"
        )

    def call(*args: object) -> None:
        try:
            loop.call_soon_threadsafe(_start, loop, function, args)
        except RuntimeError:
            _logger.warning("the hook %r was not called: its event loop is closed", function)

    return call


def _start(loop: AbstractEventLoop, function: Callable[..., Any], args: tuple[object, ...]) -> None:
    task = loop.create_task(_logged(function, args), name="stoppable-hook")
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _logged(function: Callable[..., Any], args: tuple[object, ...]) -> None:
    try:
        await function(*args)
    except Exception:
        _logger.exception("the hook %r failed", function)

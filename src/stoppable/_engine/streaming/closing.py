"""Closes the source of a stream: at its end, from another thread, or after its reader is gone."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import socket
from asyncio import AbstractEventLoop, Task
from collections.abc import Mapping
from typing import Any

from stoppable._engine import threads


def close_all(closables: tuple[Any, ...]) -> None:
    """Close each object, even if closing another one raises."""
    with contextlib.ExitStack() as stack:
        for closable in reversed(closables):
            close = getattr(closable, "close", None)
            if close is not None:
                stack.callback(close)


def close_elsewhere(closables: tuple[Any, ...]) -> None:
    """Close objects that are no longer read, on a separate thread."""

    def close() -> None:
        with contextlib.suppress(Exception):  # there is nobody to tell
            close_all(closables)

    with contextlib.suppress(RuntimeError):  # the system cannot start a thread
        threads.pool.submit(close)


async def aclose_all(closables: tuple[Any, ...]) -> None:
    """Close each object in a task, even if another one raises; with ``aclose`` if it exists, else ``close``."""
    async with contextlib.AsyncExitStack() as stack:
        for closable in reversed(closables):
            stack.push_async_callback(_aclose_one, closable)


async def _aclose_one(closable: Any) -> None:
    close = getattr(closable, "aclose", None) or getattr(closable, "close", None)
    if close is not None:
        closing = close()
        if inspect.isawaitable(closing):
            await closing


_closing: set[Task[None]] = set()  # asyncio itself keeps only a weak reference to a task


def close_soon(loop: AbstractEventLoop, closables: tuple[Any, ...]) -> None:
    """Close objects that are no longer read, in a separate task that belongs to no run."""

    def start() -> None:
        task = loop.create_task(aclose_all(closables), context=contextvars.Context())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing can close them
        loop.call_soon_threadsafe(start)


def shut_down_connection(source: Any) -> bool:
    """Shut down the socket of an httpx response, which wakes a thread in ``recv()``; False if there is none.

    Closing the socket would not wake it. An HTTP/2 connection is shared with other requests, so it is left alone.
    https://www.python-httpx.org/advanced/extensions/#network_stream
    """
    response = getattr(source, "response", source)
    extensions = getattr(response, "extensions", None)
    if not isinstance(extensions, Mapping) or extensions.get("http_version") != b"HTTP/1.1":
        return False
    connection = extensions["network_stream"].get_extra_info("socket")
    if connection is None or response.is_closed:
        return False  # a closed response's connection may already serve the next request
    connection.shutdown(socket.SHUT_RDWR)
    return True

"""Finds the tasks that wait for a task, through futures and functions of asyncio such as ``gather``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

_MOST = 64  # futures to look at


def awaiters_of(task: asyncio.Task[Any]) -> Iterator[asyncio.Task[Any]]:
    """Yield the tasks that wait for a task, nearest first."""
    found: list[asyncio.Future[Any]] = [task]
    for future in found:
        for callback, *_ in getattr(future, "_callbacks", None) or ():
            for waiter in _behind(callback):
                if waiter not in found and len(found) < _MOST:
                    found.append(waiter)
                    if isinstance(waiter, asyncio.Task):
                        yield waiter


def _behind(callback: Any) -> Iterator[asyncio.Future[Any]]:
    """Yield the futures that a callback of a future resolves or wakes."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.TaskGroup):
        owner = owner._parent_task  # type: ignore[attr-defined]
    values = [owner, *(callback.args if isinstance(callback, partial) else ())]
    values += [cell.cell_contents for cell in getattr(callback, "__closure__", None) or () if _is_filled(cell)]
    for value in values:
        if asyncio.isfuture(value):
            yield value


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True

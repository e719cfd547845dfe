"""Calls that a stop does not cut, such as those of the database that a framework keeps its sessions in.

A driver need not survive a cancel at every moment. With aiosqlite below SQLAlchemy, a transaction stays open, and with
it the file locked for everybody until the process ends; a database in memory is gone with its connection. So such a
call is executed by a task of its own. Whoever waits for it and is cancelled waits on until it has ended, so that
nothing comes between; a second cancel, or too long a time, leaves it to come to its end alone.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import stoppable

_logger = logging.getLogger("stoppable.adapters")

PATIENCE_SECONDS = 5.0

_cancelled: dict[int, set[asyncio.Task[Any]]] = {}
"""The calls that go on though they were cancelled, by the id of their object, which they keep alive."""


def whole(plain: Callable[..., Coroutine[Any, Any, Any]], owner: Any = None) -> Callable[..., Any]:
    """Return a method whose calls come to their end, even if whoever waits for one is cancelled.

    ``owner`` is the object of a bound method; that of a function is its first argument.
    """

    @functools.wraps(plain)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with stoppable.detached():  # a part of the run would be cancelled with it
            task = asyncio.create_task(plain(*args, **kwargs))
        try:
            await asyncio.wait([task])
        except BaseException as error:
            _keep(args[0] if owner is None else owner, task)
            if isinstance(error, asyncio.CancelledError):
                await asyncio.wait([task], timeout=PATIENCE_SECONDS)
            raise
        return task.result()

    return call


async def settle(owner: Any) -> None:
    """Wait for the cancelled calls of an object: whoever completes a session must see what they write."""
    loop = asyncio.get_running_loop()
    tasks = [task for task in _cancelled.get(id(owner), ()) if task.get_loop() is loop]
    if tasks:
        await asyncio.wait(tasks)


def _keep(owner: Any, task: asyncio.Task[Any]) -> None:
    tasks = _cancelled.setdefault(id(owner), set())
    tasks.add(task)

    def end(task: asyncio.Task[Any]) -> None:
        tasks.discard(task)
        if not tasks and _cancelled.get(id(owner)) is tasks:
            del _cancelled[id(owner)]
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.warning("a session could not be read or written while its run was stopped", exc_info=error)

    task.add_done_callback(end)

"""Generators of Strands that are executed in tasks of their own.

Strands reads agents and tools as nested generators, and cancels the tasks of tools when the reader of the agent is cut.
Two things would go wrong in these tasks: if the reader is cut while it does something else with an event, the
generators, with the lock of the agent, are left to the garbage collector; and a second cancel breaks the clean-up that
the cancel of the stop has started. A task of its own is cancelled once, and the run ends after it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import stoppable
from stoppable import Run
from stoppable.adapters._shared import Handover


async def read_in_task(
    run: Run, name: str, begin: Callable[[], AsyncGenerator[Any, None]]
) -> AsyncGenerator[Any, None]:
    """Yield what a generator yields, which a separate task of the run executes; raise what it raises."""
    items = Handover()
    errors: list[BaseException] = []

    async def execute() -> None:
        try:
            stoppable.check()  # the task takes part in the run
            items.release_with_stop()
            async with contextlib.aclosing(begin()) as source:
                async for item in source:
                    items.put(item)
                    await items.until_wanted()
        except BaseException as error:
            errors.append(error)
        items.end()

    task = asyncio.create_task(execute(), name=name)
    try:
        async for item in items:
            yield item
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        items.release()
        await _until_done(task, run)
    for error in errors:
        if isinstance(error, asyncio.CancelledError):
            stoppable.check()  # it was the task that was cancelled, not its reader
        raise error


async def _until_done(task: asyncio.Task[None], run: Run) -> None:
    """Wait for a task whose reader has left, also if the reader is cancelled again: Strands closes what it executes."""
    cancel: asyncio.CancelledError | None = None
    while not task.done():
        if not run.token.stopped:  # after a stop, a reader that leaves does not cut what has its grace
            task.cancel()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancel = error
    if cancel is not None:
        raise cancel

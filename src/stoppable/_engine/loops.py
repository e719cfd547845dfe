"""Event loops that stoppable runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from stoppable._engine.plain.executors import LoopExecutor, carry_runs

T = TypeVar("T")

_CLOSING_SECONDS = 2.0


def run_in_new_loop(main: Callable[[], Coroutine[Any, Any, T]], cut: Callable[[], object] = lambda: None) -> T:
    """Run a coroutine to its end on a new loop, whose default executor passes the run on to its threads.

    Unlike ``asyncio.run`` it does not wait for tasks, generators and threads that cannot be ended; ``cut`` is called if
    there are such tasks.
    """
    loop = new_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        close_loop(loop, cut)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop, whose default executor passes the run on to its threads."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(LoopExecutor())
    return loop


def give_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Make the calls in a loop's default executor take part in the run; a loop without an executor gets one."""
    executor = getattr(loop, "_default_executor", loop)
    if executor is None:
        loop.set_default_executor(LoopExecutor())
    elif type(executor) is not LoopExecutor:
        carry_runs(executor)


def close_loop(loop: asyncio.AbstractEventLoop, cut: Callable[[], object] = lambda: None) -> None:
    """Close a loop without waiting for tasks and generators that cannot be ended; ``cut`` is called if there are."""
    leftover = asyncio.all_tasks(loop)
    for task in leftover:
        task.cancel()
    if leftover:
        loop.run_until_complete(asyncio.wait(leftover, timeout=_CLOSING_SECONDS))
    closing = loop.create_task(loop.shutdown_asyncgens())
    loop.run_until_complete(asyncio.wait([closing], timeout=_CLOSING_SECONDS))
    left = asyncio.all_tasks(loop)
    if left:
        cut()
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # abandoned, and reported as such
    loop.close()

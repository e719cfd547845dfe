"""Ends a model call between two pieces of its answer, with the request behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import stoppable

T = TypeVar("T")


class ModelStream:
    """A model call in this task that reads its answer piece by piece, inside the framework.

    Clients of model providers refer to their streams in cycles. If an exception ended the reader, the stream, and with
    it the request, would stay open until the garbage collector finds it, and the provider would go on and be paid. So
    the task cancels itself: the cancel arrives where the next piece is awaited, and each function on the way out closes
    what it has opened. Here the cancel is taken back, and the stop is raised in its place.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine makes it"
        self._task: asyncio.Task[Any] = task
        self._cancels = task.cancelling()
        self._is_cut = False

    def note_piece(self) -> None:
        """Note that a piece has arrived: if the run was stopped, the call ends before the next one."""
        if not self._is_cut and asyncio.current_task() is self._task and stoppable.should_stop():
            self._is_cut = True
            self._task.cancel()

    async def read(self, call: Awaitable[T]) -> T:
        """Return what the call returns, or raise the stop that has ended it."""
        try:
            result = await call
            if self._is_cut:
                await self._absorb()
        except BaseException as error:
            if not self._is_cut:
                raise
            is_foreign = self._task.uncancel() > self._cancels
            if not (is_foreign and isinstance(error, asyncio.CancelledError)):
                stoppable.check()
            raise
        return result

    async def _absorb(self) -> None:
        """Take the cancel back although the last piece has arrived: the answer is complete, and is kept."""
        try:
            await asyncio.sleep(0)  # it may arrive only now
        except asyncio.CancelledError:
            if self._task.cancelling() > self._cancels + 1:
                raise
        self._task.uncancel()

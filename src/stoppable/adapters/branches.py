"""What is under way in a turn of a framework, so that a branch that notices a stop does not cut the call of another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Self

import stoppable


class Unit:
    """Something of a turn that has begun and not ended, such as an agent, a model call or a tool call."""

    __slots__ = ("outer", "waiters")

    def __init__(self, outer: Unit | None) -> None:
        self.outer: Unit | None = outer
        self.waiters: int = 0
        """How many tasks inside it have noticed the stop and wait for the others."""

    def chain(self) -> Iterator[Self]:
        """Yield it and the units around it."""
        unit: Any = self  # an adapter nests units of one class
        while unit is not None:
            yield unit
            unit = unit.outer


class UnderWay:
    """The units of one turn; they begin and end on any thread, and tasks of one loop wait for them."""

    def __init__(self) -> None:
        self._units: set[Unit] = set()
        self._loop = asyncio._get_running_loop()  # None in a turn of plain functions, in which no task waits
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_quiet = False

    def add(self, unit: Unit) -> None:
        """Note that a unit has begun."""
        self._units.add(unit)

    def end(self, unit: Unit) -> None:
        """Note that a unit has ended."""
        self._units.discard(unit)
        self._wake()

    @contextlib.contextmanager
    def suspended(self, unit: Unit) -> Iterator[None]:
        """Let a generator yield in the block: while its reader has the item, nothing of it is under way."""
        self.end(unit)
        try:
            yield
        finally:
            self.add(unit)

    async def check(self, unit: Unit | None) -> None:
        """Raise the stop of the run if there is one, but not while others of the turn finish what they have begun.

        Otherwise one branch that notices the stop would cut the call that another has in flight: task groups, and
        LangGraph, cancel what is beside a branch that raises. A branch that waits here is cancelled with the run when
        its grace is over.
        """
        if not stoppable.should_stop():
            return
        # Frameworks may run async tools on other loops.
        if unit is not None and self._loop is not None and self._loop is asyncio._get_running_loop():
            await self._quiet(self._loop, unit)
        stoppable.check()

    async def _quiet(self, loop: asyncio.AbstractEventLoop, unit: Unit) -> None:
        chain = list(unit.chain())
        for one in chain:
            one.waiters += 1
        self._wake()
        try:
            while not self._is_quiet:
                if all(one.waiters for one in list(self._units)):  # a copy, because threads change it
                    self._is_quiet = True  # stays set, like the stop: nothing is in flight that could be cut
                    self._wake()
                    return
                await self._changed(loop)
        finally:
            for one in chain:
                one.waiters -= 1

    async def _changed(self, loop: asyncio.AbstractEventLoop) -> None:
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _wake(self) -> None:
        loop = self._loop
        if loop is None:
            return
        if loop is not asyncio._get_running_loop():
            # Always, even if no task waits: one may be about to.
            with contextlib.suppress(RuntimeError):  # it was closed
                loop.call_soon_threadsafe(self._wake)
            return
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

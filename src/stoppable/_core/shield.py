"""The bounded clean-up region."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Iterator
from types import TracebackType
from typing import Never, Self

from stoppable._core import clock, context, participants
from stoppable._core.context import RunContext
from stoppable._core.node import RunNode
from stoppable._core.values import seconds
from stoppable.errors import InvalidArgument, StoppableError


class shielded:  # noqa: N801 - reads as a statement: `with shielded(5):`
    """Protect a clean-up: inside, ``should_stop()`` is False, boundaries may be entered, and CANCEL waits.

    The protection lasts ``seconds`` from entry, until the block is left, and never beyond KILL. It also covers the
    tasks and runs that are started inside. It cannot span a ``yield``.
    """

    __slots__ = ("_holders", "_is_left", "_outer", "_region", "_reset", "_run", "_seconds", "_until")

    def __init__(self, seconds_: float, /) -> None:
        self._seconds = seconds(seconds_, "seconds")
        self._run: RunNode | None = None
        self._reset: contextvars.Token[RunContext] | None = None
        self._region = self  # the original block, if this one extends it to another run
        self._outer: shielded | None = None  # the block around it
        self._is_left = False
        self._holders: list[participants.Participant] = []

    def __enter__(self) -> Self:
        if self._reset is not None:
            raise InvalidArgument("this shield was already used: call shielded(…) again for each block")
        outer = context.current.get()
        self._run = outer.run_here()
        if self._run is not None:
            self._run.checked_at = clock.coarse.now
            self._until = clock.now() + self._seconds
            self._outer = outer._region if isinstance(outer, shielded) else None
            participant = participants.engine.current()
            if participant is not None:
                self._protect(participant)
            self._reset = context.current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._reset is None:
            return
        try:
            context.current.reset(self._reset)
        except ValueError:
            raise StoppableError("a shield cannot span a yield: leave `with shielded(…)` before yielding") from None
        finally:
            self._is_left = True
            for holder in self._holders:
                holder.shield_left(self)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

    def _over(self, run: RunNode) -> shielded:
        """Return the same shield for a run that was started inside it."""
        inner = shielded(self._seconds)
        inner._region = self._region
        inner._run = run
        return inner

    def _protect(self, participant: participants.Participant) -> None:
        """Delay CANCEL for a participant until the shield is left."""
        for region in self._regions():
            if participant not in region._holders:
                region._holders.append(participant)
                participant.shield_entered(region)

    def _regions(self) -> Iterator[shielded]:
        """Yield the surrounding shields, innermost first: a task may outlive the shield in which it was started."""
        region: shielded | None = self._region
        while region is not None:
            if not region._is_left:
                yield region
            region = region._outer

    def _ends_at(self) -> float:
        """Return when the protection ends: after its time, or at KILL."""
        run = self._run
        until = max((region._until for region in self._regions()), default=-math.inf)
        kill_at = None if run is None else run.kill_at()
        return until if kill_at is None else min(until, kill_at)

    # As the context of the code inside it

    @property
    def checked_at(self) -> float:
        assert self._run is not None, "outside a run, a shield is never the context"
        return self._run.checked_at

    @checked_at.setter
    def checked_at(self, at: float) -> None:
        assert self._run is not None, "outside a run, a shield is never the context"
        self._run.checked_at = at

    @property
    def closed(self) -> bool:
        return self._run is not None and self._run.closed and not self._is_active()

    def _is_active(self) -> bool:
        """Whether it still protects: the run has not ended, and the time is not over."""
        return self._run is not None and self._run.outcome is None and clock.now() < self._ends_at()

    def run_here(self) -> RunNode | None:
        return self._run

    def answer_should_stop(self) -> bool:
        return self._run is not None and self._run.answer_should_stop()

    def raise_stopped(self) -> Never:
        assert self._run is not None, "a shield outside a run is never closed"
        self._run.raise_stopped()

"""Counts what a run and its subtree use, and stops the run at its limits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from stoppable._core.policy import Limits
from stoppable._core.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from stoppable._core.node import RunNode


Left: TypeAlias = tuple[int, int]
"""How many boundaries may still be entered, and the limit."""


class Budget:
    """The limits of one run; a boundary counts here and in every budget further up the tree."""

    __slots__ = ("_counters", "_limits", "_outer", "_run", "_spent")

    def __init__(self, run: RunNode, limits: Limits, outer: Budget | None) -> None:
        self._run = run
        self._limits = limits
        self._outer = outer
        # next() of a count is atomic, so two threads never get the same number.
        self._counters: dict[str, Iterator[int]] = {kind: count(1) for kind in limits.boundaries}
        self._spent: dict[str, int] = {}  # approximate: another thread may be about to raise it

    def spend(self, kind: str) -> None:
        """Count one boundary; the first one over a limit stops the run that has the limit."""
        budget: Budget | None = self
        while budget is not None:
            counter = budget._counters.get(kind)
            if counter is not None:
                budget._spent[kind] = spent = next(counter)
                if spent > budget._limits.boundaries[kind]:
                    budget._exceeded(kind, budget._limits.boundaries[kind])
            budget = budget._outer

    def _exceeded(self, kind: str, limit: int) -> None:
        self._run.stop(reason=Reason.of(f"limit of {limit} {kind} boundaries", kind=ReasonKind.LIMIT))

    def left(self) -> dict[str, Left]:
        """Return how many boundaries of each kind may still be entered, here and in every ancestor."""
        found: dict[str, Left] = {}
        budget: Budget | None = self
        while budget is not None:
            for kind, limit in budget._limits.boundaries.items():
                left = max(0, limit - budget._spent.get(kind, 0)), limit
                found[kind] = min(left, found.get(kind, left))
            budget = budget._outer
        return found

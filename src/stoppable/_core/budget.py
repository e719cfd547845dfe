"""Counts what a run with its subtree uses, and stops it at its limits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from stoppable._core.policy import Limits
from stoppable._core.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from stoppable._core.run import Run


class Budget:
    """The limits of one run; a boundary counts here and in every budget further up the tree."""

    __slots__ = ("_counters", "_limits", "_outer", "_run")

    def __init__(self, run: Run, limits: Limits, outer: Budget | None) -> None:
        self._run = run
        self._limits = limits
        self._outer = outer
        # next() of a count is atomic, so two threads never get the same number.
        self._counters: dict[str, Iterator[int]] = {kind: count(1) for kind in limits.boundaries}

    def spend(self, kind: str) -> None:
        """Count one boundary; the first one over a limit stops the run that has the limit."""
        budget: Budget | None = self
        while budget is not None:
            counter = budget._counters.get(kind)
            if counter is not None and next(counter) > budget._limits.boundaries[kind]:
                budget._run.stop(
                    reason=Reason.of(
                        f"limit of {budget._limits.boundaries[kind]} {kind} boundaries", kind=ReasonKind.LIMIT
                    )
                )
            budget = budget._outer

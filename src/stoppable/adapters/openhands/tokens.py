"""The object behind ``conversation.cancel_token``: says whether one tool call or run was stopped, for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openhands.sdk.conversation.cancellation import CancellationToken

import stoppable


class RunToken(CancellationToken):  # type: ignore[misc]  # its types are known where OpenHands is installed
    """The token of OpenHands for a run: latched, and never that of a later run."""

    __slots__ = ("run",)

    def __init__(self, run: stoppable.Run) -> None:
        super().__init__()
        self.run: stoppable.Run = run

    def cancel(self) -> None:
        """Stop the run."""
        self.run.stop("immediate", "cancel_token.cancel()")

    @property
    def is_cancelled(self) -> bool:
        """Whether the run or one of its ancestors was stopped; True counts as noticing the stop (delivery)."""
        # Those above it too: a thread may outlive the tool call that started it.
        told = [run for run in lineage(self.run) if run.token.stopped]
        for run in told:
            run.token.should_stop()
        return bool(told)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunToken) and other.run is self.run

    def __hash__(self) -> int:
        return hash(self.run)


def lineage(run: stoppable.Run | None) -> Iterator[stoppable.Run]:
    """Yield a run and those above it."""
    while run is not None:
        yield run
        above: Any = run.parent
        run = above

"""The sink: where runs report what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoppable._core import context

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary
    from stoppable._core.node import RunNode
    from stoppable._core.stop import Stop


class Sink:
    """Receives the reports of a run and its subtree, from the run's code: must return at once and not raise."""

    __slots__ = ()

    def began(self, run: RunNode) -> None:
        """Record that the body of a run begins; it may be a child that was not reported before."""

    def stopping(self, stop: Stop) -> None:
        """Record that a run was stopped; may be called in a signal handler."""

    def ended(self, run: RunNode) -> None:
        """Record that a run has its outcome; called before waiting callers are woken. It may never have begun."""

    def died(self, run: RunNode) -> None:
        """Record that nothing is left of a lost run; may be called more than once."""

    def entered(self, run: RunNode, boundary: Boundary) -> None:
        """Record that a boundary was entered."""

    def left(self, run: RunNode, boundary: Boundary) -> None:
        """Record that a boundary was left."""

    def partial(self, run: RunNode, value: object, *, appended: bool) -> None:
        """Record that the partial of the run was replaced by a value, or extended by it."""

    def annotated(self, run: RunNode, metadata: dict[str, object]) -> None:
        """Record facts about the run, which replace those of the same names."""

    def event(self, run: RunNode, kind: str, data: dict[str, object]) -> None:
        """Record progress of the run."""


def emit(kind: str, /, **data: object) -> None:
    """Report progress of the current run as an event."""
    run = context.current_node()
    if run is not None and run.sink is not None:
        run.sink.event(run, kind, data)

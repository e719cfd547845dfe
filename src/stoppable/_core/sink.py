"""Where a run tells what it does, to whoever keeps a record of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoppable._core import context

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary
    from stoppable._core.run import Run
    from stoppable._core.stop import Stop


class Sink:
    """What a run with its subtree reports; called by the code of the run, so it returns at once and raises nothing."""

    __slots__ = ()

    def began(self, run: Run) -> None:
        """Note that the body of a run begins; it may be a child that was never heard of."""

    def stopping(self, stop: Stop) -> None:
        """Note that a run was told to stop; also from a signal handler."""

    def ended(self, run: Run) -> None:
        """Note that a run has its outcome, before anybody who waits for it is woken; it may never have begun."""

    def died(self, run: Run) -> None:
        """Note that nothing is left of a run that was given up; it may be said more than once."""

    def entered(self, run: Run, boundary: Boundary) -> None:
        """Note that a boundary was entered."""

    def left(self, run: Run, boundary: Boundary) -> None:
        """Note that a boundary was left."""

    def partial(self, run: Run, value: object, *, appended: bool) -> None:
        """Note that what the run has so far was replaced by a value, or extended by it."""

    def annotated(self, run: Run, metadata: dict[str, object]) -> None:
        """Note facts about the run, which replace those of the same names."""

    def event(self, run: Run, kind: str, data: dict[str, object]) -> None:
        """Note what the run told of its progress."""


def emit(kind: str, /, **data: object) -> None:
    """Report progress of the current run as an event."""
    run = context.current_run()
    if run is not None and run._sink is not None:
        run._sink.event(run, kind, data)

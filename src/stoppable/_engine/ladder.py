"""The ladder: climbs the rungs of a stop while anything that it reached is alive."""

from __future__ import annotations

from itertools import islice

from stoppable._core import clock, participants
from stoppable._core.hooks import Moment, call_hooks
from stoppable._core.node import RunNode
from stoppable._core.state import Rung
from stoppable._core.stop import Stop
from stoppable._engine import control

_LOOKS = 4  # in the blind grace, for the end of a call that an executor makes


class Ladder(control.Timer):
    """The ladder of one stop. Several may climb the same run; each rung is climbed once, at the earliest time."""

    __slots__ = ("_climbed", "_rung", "_stop")

    def __init__(self, stop: Stop) -> None:
        self._stop: Stop | None = stop
        self._climbed = 0

    def start(self) -> None:
        """Wait for the next rung, if there is one."""
        stop = self._stop
        if stop is None:
            return
        # No generator is kept for the next rung: it would be one more object for the garbage collector, mostly unused.
        step = next(islice(stop.schedule(), self._climbed, None), None)
        if step is not None:
            self._climbed += 1
            self._rung, after = step
            self.when = stop.requested_at + after
            if self._rung is Rung.INTERRUPT and stop.is_call_awaited:
                self.when = min(self.when, clock.now() + stop.target.policy.blind_wait / _LOOKS)
            control.get().add(self)

    def collected(self) -> bool:
        """Return whether anything is still alive; usually everything that the stop reached has ended by then."""
        if self._stop is None or not self._stop.target.is_alive():
            return False
        self._stop.target.when_ended(self._let_go)
        return True

    def is_cancelled(self) -> bool:
        """Return whether the ladder has ended."""
        return self._stop is None

    def cancel(self) -> None:
        """End the ladder."""
        self._stop = None

    def fire(self) -> None:
        """Climb a rung, unless nothing is alive any more."""
        if self._stop is None:
            return
        if self._rung is Rung.INTERRUPT and self._is_replanned(self._stop):
            self._climbed = 0
            self.start()
        else:
            self._climb(self._stop, self._rung)

    def _is_replanned(self, stop: Stop) -> bool:
        """Return whether INTERRUPT is due at another time by now: the run turned out to be blind, or not to be."""
        if stop.recheck_blind() or stop.recheck_call():
            return True
        rung, after = next(stop.schedule())
        return stop.is_call_awaited and rung is Rung.INTERRUPT and clock.now() < stop.requested_at + after

    def _let_go(self) -> None:
        # Releases the tree at once, instead of when the next rung would be due.
        if self._stop is not None and not self._stop.target.is_alive():
            self.cancel()

    def _climb(self, stop: Stop, rung: Rung) -> None:
        # A run that has ended may also have left a task, a thread or a child behind.
        alive = [run for run in dict.fromkeys(stop.nodes) if run.outcome is None or run.is_alive()]
        if not alive:
            return
        climbed = [run for run in alive if run.climb(rung)]
        match rung:
            case Rung.INTERRUPT:
                due = [run for run in climbed if run.outcome is None]
                call_hooks([hook for run in due for hook in run.take_hooks(Moment.INTERRUPT)])
            case Rung.CANCEL | Rung.KILL:
                self._force(rung, climbed)
            case Rung.LOST:
                for run in reversed(climbed):
                    run.lose()
            case Rung.SIGNAL:
                raise AssertionError("SIGNAL is the stop itself")
        self.start()

    def _force(self, rung: Rung, runs: list[RunNode]) -> None:
        # A task that executes several nested runs gets one cancel, for the outermost of them (G7).
        outermost: dict[type[participants.Participant], dict[participants.Participant, RunNode]] = {}
        for run in runs:
            for participant in run.participants():
                outermost.setdefault(type(participant), {}).setdefault(participant, run)
        for kind, targets in outermost.items():
            kind.climb(rung, targets)
        # A participant whose event loop was closed can no longer report its end.
        for run in runs:
            run.settle()


def climb(stop: Stop) -> None:
    """Start the ladder of a stop."""
    Ladder(stop).start()

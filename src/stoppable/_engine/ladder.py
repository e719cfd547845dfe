"""The ladder: climbs the rungs of a stop while anything that it reached is alive.

The time of a rung counts only while what has to act on it can act. An event loop that another task blocks delivers no
cancel and resumes no clean-up; if the rungs went on meanwhile, a run that obeys would be killed, or given up as
``lost``. So, while a ladder waits, the control thread pings the loops (control.py). A rung that is due waits until the
loops that execute the run have turned since the rung below, and as much longer as they were held up, or as the control
thread itself could not run. Two exceptions:

- A loop that the run itself holds is no excuse, except from being ``lost``: its code can act, and INTERRUPT, or TERM to
  the process that it waits for, may be what frees the loop.
- Not longer than the bound: three times the rung, and at least ten seconds (G6). Only a time in which the whole process
  was suspended comes on top.

Before LOST the loops must have turned once more after the time was over, and participants that search for processes
must have searched once since KILL.

Trees may have tens of thousands of runs, and the control thread serves all stops of the process. So a rung is climbed
by a generator, a few milliseconds at a time, and the timers of other stops fire in between. Force is still applied to
all participants at once: a task group that is cancelled passes the cancel on, and a task that got it already must not
get a second one (G7).
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from itertools import islice

from stoppable._core import clock, participants
from stoppable._core.hooks import Hook, Moment, call_hooks
from stoppable._core.node import RunNode
from stoppable._core.stop import Stop
from stoppable._core.values import Rung
from stoppable._engine import control, tasks

_logger = logging.getLogger("stoppable")

_SLICE_SECONDS = 0.002
_BOUND_FACTOR, _LEAST_BOUND_SECONDS = 3, 10.0
_SUSPENDED_SECONDS = 2.0  # a process that could not run for so long at a stretch was suspended
_FIRST_PAUSE = 0.01

_NOW = 0.0  # as the time of the next step

_LOOKS = 4  # in the blind grace, for the end of a call that an executor makes


class Ladder(control.Timer):
    """The ladder of one stop. Several may climb the same run; each rung is climbed once, at the earliest time."""

    __slots__ = ("_began_at", "_climbed", "_rung", "_steps", "_stop")

    def __init__(self, stop: Stop) -> None:
        self._stop: Stop | None = stop
        self._climbed = 0
        self._began_at = stop.requested_at  # when the time of the current rung began
        self._steps: Iterator[float] | None = None  # the climb that is in progress

    def start(self) -> None:
        """Wait for the next rung, if there is one."""
        stop = self._stop
        if stop is None:
            return
        # No generator is kept for the next rung: it would be one more object for the garbage collector, mostly unused.
        step = next(islice(stop.schedule(), self._climbed, None), None)
        if step is None:
            self.cancel()
            return
        self._climbed += 1
        self._rung, after = step
        self.when = stop.requested_at + after
        if self._rung is Rung.INTERRUPT and stop.is_call_awaited:
            self.when = min(self.when, clock.now() + stop.target.policy.blind_wait / _LOOKS)
        control.get().add(self)

    def must_be_scheduled(self) -> bool:
        """Return whether anything is still alive; usually everything that the stop reached has ended by then."""
        if self._stop is None or not self._stop.target.is_alive():
            self.cancel()
            return False
        waiting = control.get().waiting
        if self not in waiting:
            waiting.add(self)
            self._stop.target.when_ended(self._let_go)
        return True

    def is_cancelled(self) -> bool:
        """Return whether the ladder has ended."""
        return self._stop is None

    def cancel(self) -> None:
        """End the ladder."""
        self._stop = self._steps = None
        control.get().waiting.discard(self)

    def fire(self) -> None:
        """Climb a rung, or go on with it, unless nothing is alive any more."""
        stop = self._stop
        if stop is None:
            return
        if self._is_too_early(stop, self._rung):
            self._climbed = 0
            self.start()
            return
        if self._steps is None:
            self._steps = self._climb(stop, self._rung)
        try:
            if self._is_interrupted(self._steps):
                return
        except Exception:  # the next rung may do what this one could not
            _logger.exception("run %s: the rung %s failed", stop.target.id, self._rung)
        self._steps = None
        self.start()

    def _is_interrupted(self, steps: Iterator[float]) -> bool:
        """Take the steps that are due; return whether to go on later, so that other timers get their turn."""
        keeper, slice_end = control.get(), clock.now() + _SLICE_SECONDS
        for when in steps:
            if not keeper.is_driven and max(when, clock.now()) >= slice_end:
                self.when = max(when, clock.now())  # behind the timers that are due by now
                keeper.add(self)
                return True
        return False

    def _is_too_early(self, stop: Stop, rung: Rung) -> bool:
        """Return whether it only had to look whether the call that an executor makes for the run is over."""
        if rung is not Rung.INTERRUPT or not stop.is_call_awaited:
            return False
        return stop.recheck_call() or clock.now() < stop.requested_at + next(stop.schedule())[1]

    def _let_go(self) -> None:
        # Releases the tree at once, instead of when the next rung would be due.
        if self._stop is not None and not self._stop.target.is_alive():
            self.cancel()

    def _climb(self, stop: Stop, rung: Rung) -> Iterator[float]:
        """Climb a rung in small steps; yield when the next step is due."""
        if not control.get().is_driven:  # a test that drives the clock decides itself what happens in between
            yield from self._wait(stop, rung)
        if rung is Rung.INTERRUPT and stop.recheck_blind():
            self._climbed = 0
            return
        climbed: list[RunNode] = []
        for run in (yield from _alive(stop, rung)):
            if run.climb(rung):
                climbed.append(run)
            yield _NOW
        match rung:
            case Rung.INTERRUPT:
                yield from _interrupt(climbed)
            case Rung.CANCEL | Rung.KILL:
                yield from _force(rung, climbed)
            case Rung.LOST:
                for run in reversed(climbed):
                    run.lose()
                    yield _NOW
            case Rung.SIGNAL:
                raise AssertionError("SIGNAL is the stop itself")
        self._began_at = clock.now()

    # The time of a rung

    def _wait(self, stop: Stop, rung: Rung) -> Iterator[float]:
        """Yield until the time of the rung below is over, not counting that in which nothing could act on it."""
        seconds = stop.seconds_before(rung)
        if not seconds and rung is not Rung.LOST:
            return
        planned_at, began_at, pause = self.when, self._began_at, _FIRST_PAUSE
        # The rung below may have been climbed late: a large tree, or a process that was suspended meanwhile.
        is_late = began_at + seconds - planned_at > control.LATE_SECONDS
        due_at = began_at + seconds if is_late else planned_at
        bound = max(_BOUND_FACTOR * seconds, _LEAST_BOUND_SECONDS)
        while True:
            now = clock.now()  # before what was lost of it is looked up
            starved = list(control.get().starved)
            frozen = control.covered_seconds(starved, began_at)
            is_over = now >= due_at and not frozen and rung is not Rung.LOST
            if is_over and all(loop.is_steady(began_at) for loop in control.all_pulses()):
                return  # the usual case, however many runs there are
            loops, is_searching = yield from self._survey(stop, rung)
            stalled = [control.covered_seconds([*starved, *loop.stalls()], began_at) for loop in loops]
            # Short delays count for the bound: on a machine that is always too busy they would never end.
            suspended = control.covered_seconds(
                (time for time in starved if time[1] - time[0] > _SUSPENDED_SECONDS), began_at
            )
            over_at, latest = due_at + max(stalled, default=frozen), began_at + bound + suspended
            # For LOST once more, after the time is over: what was about to end has ended then.
            behind = [loop for loop in loops if loop.turned_at < (over_at if rung is Rung.LOST else began_at)]
            if now >= latest or (now >= over_at and not behind and not is_searching):
                return
            for loop in behind:
                loop.ping()
            again_at = min(latest, max(over_at, now + pause))
            stop.delay(rung, again_at - planned_at)
            yield again_at
            pause = min(2 * pause, control.TICK_SECONDS)

    def _survey(self, stop: Stop, rung: Rung) -> Generator[float, None, tuple[set[control.Pulse], bool]]:
        """Return the loops that have to turn, and whether a participant has yet to search for its processes."""
        loops: set[control.Pulse] = set()
        own: set[control.Pulse] = set()
        is_searching = False
        for run in (yield from _alive(stop, rung)):
            yield _NOW
            seats = run.participants()
            if not seats and run.started_at is None:
                loops.update(control.all_pulses())  # it waits for its first step, in any of them
            for seat in seats:
                is_searching = is_searching or (rung is Rung.LOST and not seat.has_looked())
                loop = None if seat.loop is None else control.pulse_of(seat.loop)
                if loop is not None and seat.alive():
                    is_own = rung is not Rung.LOST and tasks.current_task(seat.loop) is seat.task
                    (own if is_own else loops).add(loop)
        return loops - own, is_searching


def _alive(stop: Stop, rung: Rung) -> Generator[float, None, list[RunNode]]:
    """Return the runs that a stop reached and that are alive, or have left a task, a thread or a child behind."""
    alive = []
    for run in dict.fromkeys(stop.nodes):
        if rung is Rung.LOST:
            run.settle()  # its end may not have been noticed
        if run.outcome is None or run.is_alive():
            alive.append(run)
        yield _NOW
    return alive


def _interrupt(runs: list[RunNode]) -> Iterator[float]:
    hooks: list[Hook] = []
    for run in runs:
        hooks += run.take_hooks(Moment.INTERRUPT) if run.outcome is None else ()
        yield _NOW
    call_hooks(hooks)


def _force(rung: Rung, runs: list[RunNode]) -> Iterator[float]:
    # A task that executes several nested runs gets one cancel, for the outermost of them (G7).
    outermost: dict[type[participants.Participant], dict[participants.Participant, RunNode]] = {}
    for run in runs:
        for participant in run.participants():
            outermost.setdefault(type(participant), {}).setdefault(participant, run)
        yield _NOW
    for kind, targets in outermost.items():
        kind.climb(rung, targets)
    # A participant whose event loop was closed can no longer report its end.
    for run in runs:
        run.settle()
        yield _NOW


def climb(stop: Stop) -> None:
    """Start the ladder of a stop."""
    Ladder(stop).start()

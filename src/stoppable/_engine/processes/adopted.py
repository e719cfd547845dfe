"""``adopt_process``: makes a process that stoppable did not start, such as a tmux pane, take part in a run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from stoppable._core import clock, context
from stoppable._core.boundary import boundary
from stoppable._core.gate import lock
from stoppable._core.ids import new_id
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.shield import shielded
from stoppable._core.state import Rung
from stoppable._engine import control
from stoppable._engine.processes import table
from stoppable._engine.processes.keeper import Force
from stoppable._engine.processes.watch import Family, watcher
from stoppable.errors import InvalidArgument

_SHORT, _LONG = 0.02, 0.2


class AdoptedProcess:
    """A process that ``adopt_process`` made a part of the run; leaving its block releases it."""

    __slots__ = ("_seat",)

    def __init__(self, seat: _Adopted | None) -> None:
        self._seat = seat

    @property
    def alive(self) -> bool:
        """Whether the process takes part in a run and has not ended."""
        return self._seat is not None and self._seat.alive()

    def release(self) -> None:
        """Release the process: it no longer belongs to the run, and a stop leaves it alone."""
        if self._seat is not None:
            self._seat.over()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def adopt_process(*, pid: int | None = None, pgid: int | None = None, name: str | None = None) -> AdoptedProcess:
    """Make a process or process group that stoppable did not start, and its children, a part of the current run.

    It is listed as in flight until it ends. A stop sends it TERM at CANCEL and KILL at KILL, and the run is not
    ``stopped`` before it is dead. If the run was already stopped, the process is ended and AgentStopped is raised. A
    run that ends without a stop leaves it alone; so does a stop after ``release()``. A process that has already ended
    is not an error. Outside a run it does nothing.
    """
    number = _checked(pid, pgid)
    run = context.current_node()
    if run is None:
        return AdoptedProcess(None)
    seat = _Adopted(run, number, name or f"{'pid' if pgid is None else 'group'} {number}", is_group=pgid is not None)
    seat.begin()
    return AdoptedProcess(seat)


def _checked(pid: int | None, pgid: int | None) -> int:
    given = [number for number in (pid, pgid) if number is not None]
    if len(given) != 1 or isinstance(given[0], bool) or not isinstance(given[0], int) or given[0] < 2:
        raise InvalidArgument(f"pid is {pid!r}, pgid is {pgid!r}: give one of them, a whole number from 2 up")
    number = given[0]
    if number == (os.getpgrp() if pid is None else os.getpid()) or (pid is not None and number in table.ancestors()):
        raise InvalidArgument(f"{number} is this process, its group or one that started it: a stop would end this one")
    return number


class _Adopted(Participant):
    """An adopted process or group as a participant; the watcher's thread looks for its processes and signals them."""

    __slots__ = (
        "_boundary",
        "_family",
        "_force",
        "_group",
        "_is_cut",
        "_is_leaving",
        "_is_over",
        "_is_told",
        "_name",
        "_pause",
        "_run",
        "_shields",
        "_watched",
    )

    def __init__(self, run: RunNode, number: int, name: str, *, is_group: bool) -> None:
        self._run = run
        self._name = name
        self._family = Family(new_id())  # no process has this id: only those that are added count
        self._group = number if is_group else None
        self._watched: set[int] = set()
        self._force = Force.NONE
        self._is_told = False  # TERM was sent; only once, because a second one would interrupt clean-up
        self._is_cut = False
        self._is_over = self._is_leaving = False
        self._pause = 0.0
        self._shields: list[shielded] = []
        self._boundary = boundary("spawn", name)
        for pid in [number] if self._group is None else table.in_group(number):
            self._family.add(pid)

    def begin(self) -> None:
        """Take part in the run; if it was told to stop, end the process and raise AgentStopped."""
        self._run.admit(self)
        try:
            self._boundary.__enter__()
        except BaseException:
            self._end()
            raise
        self._boundary.holder = self
        scope = context.current.get()
        if isinstance(scope, shielded):
            scope._protect(self)
        self._run.when_ended(self._run_ended)
        # Register first, then read the rung: either CANCEL and KILL find this participant, or it sees them.
        if self._run.rung is not None and self._run.rung >= Rung.CANCEL:
            self._climb(self._run.rung)
        watcher.call(self._look)

    # As a participant

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Send TERM at CANCEL, but not while the adopting code is in a shield, and KILL at KILL."""
        for adopted in targets:
            assert isinstance(adopted, cls)
            adopted._climb(rung)

    def _climb(self, rung: Rung) -> None:
        shielded_until = max((shield._ends_at() for shield in list(self._shields)), default=0.0)
        if rung is Rung.CANCEL and shielded_until > clock.now():
            control.get().call_at(shielded_until, lambda: self._climb(rung))
            return
        self._force = max(self._force, Force.TERM if rung is Rung.CANCEL else Force.KILL)
        watcher.call(self._look)

    def shield_entered(self, shield: shielded) -> None:
        """Delay CANCEL."""
        self._shields.append(shield)

    def shield_left(self, shield: shielded) -> None:
        """Send a delayed CANCEL."""
        self._shields.remove(shield)
        if self._run.rung is Rung.CANCEL:
            self._climb(Rung.CANCEL)

    def alive(self) -> bool:
        """Return whether any of its processes may be alive."""
        return not self._is_over

    def has_looked(self) -> bool:
        """Return whether its processes were searched again after the search that killed them."""
        return self._force is not Force.KILL or self._family.kills > 1

    def describe(self) -> str:
        """Name the process."""
        return f"adopted process {self._name}"

    # How it ends

    def _end(self) -> None:
        """End the process, because its run had already been stopped."""
        self._force = max(self._force, Force.TERM)
        control.get().call_at(clock.now() + self._run.policy.cancel, lambda: self._climb(Rung.KILL))
        watcher.call(self._look)

    def _look(self) -> float | None:
        """Send pending signals, and check whether any process is left."""
        if self._is_over:
            return None
        left = self._strike()
        if not left and self._family.is_gone:
            self.over()
            return None
        for pid in set(left) - self._watched:
            self._watched.add(pid)
            watcher.watch(pid, lambda: watcher.call(self._look))
        if self._force is Force.NONE and left:
            return None  # the watcher calls this again when one of them ends
        longest = _SHORT if self._force is Force.KILL and self._run.outcome is None else _LONG
        self._pause = min(self._pause * 2 + 0.001, longest)
        return self._pause

    def _strike(self) -> list[int]:
        left = self._family.find()
        if self._group is not None and left:  # while a process is alive, the id of its group is not reused
            for pid in set(table.in_group(self._group)) - set(left):
                self._family.add(pid)
            left = self._family.find()
        if self._force is Force.KILL or (self._force is Force.TERM and not self._is_told):
            self._is_told = True
            left, struck = self._family.strike(signal.SIGKILL if self._force is Force.KILL else signal.SIGTERM)
            self._is_cut = self._is_cut or bool(struck)
        return left

    def _run_ended(self) -> None:
        if self._run.first_stop is None:
            self.over()  # a run that ends without a stop leaves it alone

    def over(self) -> None:
        """Leave the run: the process has ended, or was released."""
        with lock:
            if self._is_leaving:
                return
            self._is_leaving = True
        self._run.forget(self._run_ended)
        # It counts as alive until it leaves the boundary, which records its fate: the run must not end before that.
        self._boundary.__exit__(asyncio.CancelledError if self._is_cut else None, None, None)
        self._is_over = True
        self._run.withdraw(self)
        if self._run.body_end is not None:
            self._run.settle()

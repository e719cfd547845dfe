"""Processes that stoppable did not start: how they are followed, and ``adopt_process``.

Groups and sessions are never signalled, because they may contain unrelated processes (G13). A child of a followed
process is found while its parent lives, or by the cookie that it bears.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TypeAlias

from stoppable._core import clock, context
from stoppable._core.boundary import boundary
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant, lock
from stoppable._core.shield import shielded
from stoppable._core.values import Rung, new_id
from stoppable._engine import control
from stoppable._engine.processes import table
from stoppable._engine.processes.group import Force
from stoppable._engine.processes.pipes import Waker
from stoppable.errors import InvalidArgument

_logger = logging.getLogger("stoppable")

_POLL_SECONDS = 0.05

Look: TypeAlias = Callable[[], float | None]
"""A function that returns after how many seconds to call it again, or None if not at all."""


class Family(table.Members):
    """Processes that were added by pid, those with the cookie, and everything that they started."""

    __slots__ = ("_added", "_spared_programs", "kills")

    def __init__(self, cookie: str, spared: tuple[str, ...] = ()) -> None:
        super().__init__(cookie)
        self._spared_programs = spared  # prefixes of the names of programs that are left alone, unless they were added
        self._added: set[int] = set()
        self.kills: int = 0  # how often all processes were searched and killed

    def add(self, pid: int) -> bool:
        """Add a process; return False if there is none with that pid."""
        self._added.add(pid)
        with contextlib.suppress(OSError):
            self._known[pid] = table.start_time(pid)
            return True
        return False

    def find(self) -> list[int]:
        """Return the live processes; if there is none, ``is_gone`` says whether that is proven."""
        return self.pids()

    def _is_spared(self, pid: int, stat: table.Stat) -> bool:
        return bool(self._spared_programs) and pid not in self._added and stat.name.startswith(self._spared_programs)

    def strike(self, signum: signal.Signals) -> tuple[list[int], list[int]]:
        """Signal all live processes; return the pids of all, and of those that were signalled."""
        members = self.pids()  # including children that bear no cookie, which the death of a member makes orphans
        # TERM to the oldest first: a parent must not see the death of its child before it gets the signal itself. KILL
        # at once to each that is found: it may be about to fork its successor and end.
        pids, signalled = [], []
        for pid in members if signum is signal.SIGTERM else self.each_for_kill():
            pids.append(pid)
            if self.signal(pid, signum):
                signalled.append(pid)
                if signum is signal.SIGTERM:
                    self.signal(pid, signal.SIGCONT)  # a suspended process would not handle TERM
        self.kills += signum is signal.SIGKILL
        return pids, signalled


class Watcher:
    """A thread that notices the end of processes, and calls functions as often as they ask for."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waker = Waker()
        self._new: deque[tuple[int, Callable[[], object]]] = deque()
        self._calls: deque[Look] = deque()
        self._due: dict[Look, float] = {}

    def watch(self, pid: int, on_end: Callable[[], object]) -> None:
        """Call a function on the watcher's thread once a process has ended; at once if there is no such process."""
        pidfd = table.open_pidfd(pid)
        if pidfd is None:
            self.call(functools.partial(_poll, pid, _start_time_of(pid), on_end))
            return
        self._new.append((pidfd, on_end))
        self._wake()

    def call(self, look: Look) -> None:
        """Call a function soon, and then as often as it asks for; from any thread."""
        self._calls.append(look)
        self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._waker.open()
                    thread = threading.Thread(target=self._work, name="stoppable-watch", daemon=True)
                    thread.start()
                    self._thread = thread
        self._waker.wake()

    def _work(self) -> None:
        selector = selectors.DefaultSelector()
        self._waker.register_in(selector)
        while True:
            while self._new:
                pidfd, on_end = self._new.popleft()
                selector.register(pidfd, selectors.EVENT_READ, functools.partial(_notice, selector, pidfd, on_end))
            for key, _ in selector.select(self._patience()):
                _call_safely(key.data)
            self._call_due()

    def _patience(self) -> float | None:
        if self._new or self._calls:
            return 0.0
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def _call_due(self) -> None:
        now = time.monotonic()
        due = [look for look, when in self._due.items() if when <= now]
        while self._calls:
            due.append(self._calls.popleft())
        for look in dict.fromkeys(due):
            self._due.pop(look, None)
            seconds = _call_safely(look)
            if seconds is not None:
                self._due[look] = now + seconds

    def forget(self) -> None:
        """Start over after a fork, which no thread survives."""
        self._begin()


def _notice(selector: selectors.BaseSelector, pidfd: int, on_end: Callable[[], object]) -> None:
    selector.unregister(pidfd)
    os.close(pidfd)
    on_end()


def _call_safely(call: Callable[[], float | None]) -> float | None:
    try:
        return call()
    except Exception:  # the thread must survive any error: it follows the other processes too
        _logger.exception("handling the end of a process failed")
        return None


def _start_time_of(pid: int) -> bytes | None:
    try:
        return table.start_time(pid)
    except OSError:
        return None


def _poll(pid: int, since: bytes | None, on_end: Callable[[], object]) -> float | None:
    """Check whether a process has ended, where there is no pidfd."""
    if since is not None and table.is_running(pid, since):
        return _POLL_SECONDS
    on_end()
    return None


watcher = Watcher()
os.register_at_fork(after_in_child=watcher.forget)


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
    number = _validate_target(pid, pgid)
    run = context.current_node()
    if run is None:
        return AdoptedProcess(None)
    seat = _Adopted(run, number, name or f"{'pid' if pgid is None else 'group'} {number}", is_group=pgid is not None)
    seat.begin()
    return AdoptedProcess(seat)


def _validate_target(pid: int | None, pgid: int | None) -> int:
    numbers = [number for number in (pid, pgid) if number is not None]
    if len(numbers) != 1 or isinstance(numbers[0], bool) or not isinstance(numbers[0], int) or numbers[0] < 2:
        raise InvalidArgument(f"pid is {pid!r}, pgid is {pgid!r}: give one of them, a whole number from 2 up")
    number = numbers[0]
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
        "_is_term_sent",
        "_kills",
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
        self._is_term_sent = False  # TERM was sent; only once, because a second one would interrupt clean-up
        self._is_cut = False
        self._is_over = self._is_leaving = False
        self._kills = 0  # the searches with KILL whose result was acted on
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
        return self._force is not Force.KILL or self._kills > 1

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
        left = self._signal_all()
        if not left and self._family.is_gone:
            self.over()
            return None
        self._kills = self._family.kills
        for pid in set(left) - self._watched:
            self._watched.add(pid)
            watcher.watch(pid, lambda: watcher.call(self._look))
        if self._force is Force.NONE and left:
            return None  # the watcher calls this again when one of them ends
        longest = _SHORT if self._force is Force.KILL and self._run.outcome is None else _LONG
        self._pause = min(self._pause * 2 + 0.001, longest)
        return self._pause

    def _signal_all(self) -> list[int]:
        left = self._family.find()
        if self._group is not None and left:  # while a process is alive, the id of its group is not reused
            for pid in set(table.in_group(self._group)) - set(left):
                self._family.add(pid)
            left = self._family.find()
        if self._force is Force.KILL or (self._force is Force.TERM and not self._is_term_sent):
            self._is_term_sent = True
            left, signalled = self._family.strike(signal.SIGKILL if self._force is Force.KILL else signal.SIGTERM)
            self._is_cut = self._is_cut or bool(signalled)
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

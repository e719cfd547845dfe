"""Plain processes as participants: identified by pid and by the cookie that they bear, and signalled one by one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar

from stoppable._core.boundary import Boundary
from stoppable._core.context import RunContext
from stoppable._core.gate import lock
from stoppable._core.ids import new_id
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.state import Rung
from stoppable._engine.plain import scopes
from stoppable._engine.processes import table
from stoppable._engine.processes.keeper import Force
from stoppable._engine.processes.watch import Family, watcher

_SHORT, _LONG = 0.02, 0.2

_spared: tuple[str, ...] = ()


def spare(programs: Iterable[str]) -> None:
    """Set the shared programs to leave alone, as prefixes of their names."""
    global _spared
    _spared = tuple(programs)


class Processes(Participant):
    """The plain processes of one run and of the runs below it, with everything they started.

    A run has up to two of these: processes of its clean-up are separate, because only KILL ends them.
    """

    __slots__ = (
        "_cut",
        "_family",
        "_force",
        "_is_clear",
        "_is_told",
        "_left",
        "_open",
        "_pause",
        "_run",
        "id",
        "is_cleanup",
    )

    def __init__(self, run: RunNode, *, is_cleanup: bool) -> None:
        self.id = new_id()
        self.is_cleanup = is_cleanup
        self._run = run
        self._family = Family(self.id, _spared)
        self._open: dict[Boundary, int | None] = {}  # the processes that this run's code started, with their pids
        self._force = Force.NONE
        self._is_told = False  # TERM was sent; only once, because a second one would interrupt clean-up
        self._is_clear = False  # the run's body has ended, and a complete search has found no process
        self._cut: set[int] = set()  # the processes that were signalled
        self._pause = 0.0
        self._left: list[int] = []  # the processes that the last search found

    @classmethod
    def of(cls, run: RunNode, *, is_cleanup: bool) -> Processes:
        """Return the processes of a run, or of its clean-up."""
        with lock:
            for found in run.members_of(cls):
                if found.is_cleanup is is_cleanup:
                    return found
            made = cls(run, is_cleanup=is_cleanup)
            run.admit(made)
            return made

    # As a participant

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Send TERM at CANCEL, except to processes of clean-up, and KILL at KILL."""
        for processes in targets:
            assert isinstance(processes, cls)
            if rung > Rung.CANCEL:
                processes._force = Force.KILL
            elif not processes.is_cleanup:
                processes._force = max(processes._force, Force.TERM)
            watcher.call(processes._look)

    def alive(self) -> bool:
        """Return whether any of them is alive; after a stop this includes processes that they left behind."""
        if self._open:
            return True
        if self._run.first_stop is None or self._is_clear:
            return False
        watcher.call(self._look)  # it settles the run when no process is left
        return True

    def has_looked(self) -> bool:
        """Return whether they were searched again after the search that killed them."""
        return self._force is not Force.KILL or self._family.kills > 1

    def describe(self) -> str:
        """Name the processes."""
        # As the last search found them: another one here would disturb that of the watcher's thread.
        pids = sorted({*self._left, *(pid for pid in list(self._open.values()) if pid is not None)})
        listed = ", ".join(f"{pid} ({table.name(pid)})" for pid in pids)
        return f"processes {listed or 'whose end could not be proven'}"

    # How they begin and end

    def begin(self, entered: Boundary) -> None:
        """Add a process that is about to be started."""
        self._open[entered] = None
        self._is_clear = False
        entered.holder = self
        self._run.admit(self)  # it may just have been withdrawn because no process was found

    def started(self, entered: Boundary, pid: int) -> None:
        """Follow a process that was started."""
        self._open[entered] = pid
        self._family.add(pid)
        watcher.watch(pid, lambda: self.ended(entered))
        # Register first, then read the rung: either CANCEL and KILL find the process, or this sees them.
        rung = self._run.rung
        if rung is not None and (rung > Rung.CANCEL or (rung is Rung.CANCEL and not self.is_cleanup)):
            self._signal(pid, signal.SIGKILL if rung > Rung.CANCEL else signal.SIGTERM)

    def ended(self, entered: Boundary, error: type[BaseException] | None = None) -> None:
        """Record that a process has ended, or was not started."""
        if self._open.get(entered) in self._cut:
            error = asyncio.CancelledError
        # It counts as alive until it leaves the boundary, which records its fate: the run must not end before that.
        entered.__exit__(error, None, None)
        del self._open[entered]
        if self._run.body_end is not None:
            self._run.settle()

    def _look(self) -> float | None:
        """Send pending signals, and check whether any process is left; on the watcher's thread."""
        if self._force is Force.KILL:
            left, struck = self._family.strike(signal.SIGKILL)  # repeatedly: a process may have been forked meanwhile
            self._cut.update(struck)
        elif self._force is Force.TERM:
            left = self._terminate()
        elif self._run.body_end is None or self._open:
            return None  # this is called again when the body or one of them ends
        else:
            left = self._family.find()
        self._left = left
        if left or self._open or not self._family.is_gone:
            is_urgent = self._force is Force.KILL or not left
            self._pause = min(self._pause * 2 + 0.001, _SHORT if is_urgent else _LONG)
            return self._pause
        if self._run.body_end is not None:
            self._is_clear = True
            self._run.withdraw(self)
            self._run.settle()
        return None

    def _terminate(self) -> list[int]:
        """Send TERM to all processes, and later only to new orphans of processes that have ended.

        Each gets it once, because a second TERM would interrupt clean-up. Processes that a live one starts for its
        clean-up are left alone.
        """
        if not self._is_told:
            self._is_told = True
            left, struck = self._family.strike(signal.SIGTERM)
            self._cut.update(struck)
            self._pause = 0.0
            return left
        left = self._family.find()
        for pid in left:
            if pid not in self._cut and self._family.parents.get(pid) not in left:
                self._signal(pid, signal.SIGTERM)
        return left

    def _signal(self, pid: int, signum: signal.Signals) -> None:
        self._cut.add(pid)  # before the signal, because the end of the process may be noticed at once
        if not self._family.signal(pid, signum):
            self._cut.discard(pid)


class ProcessStart:
    """A process that plain code is about to start; enters its boundary and makes its cookies."""

    def __init__(self, scope: RunContext, name: str) -> None:
        run = scope.run_here()
        assert run is not None, "started in a run"
        self._boundary = scopes.enter(scope, "spawn", name, is_look=True)
        is_cleanup = scopes.is_cleanup(scope)
        # A stop of any surrounding run must find the processes that this one leaves behind.
        runs = [run, *(outer for outer in run.lineage() if outer is not run and outer.outcome is None)]
        everyone = [Processes.of(each, is_cleanup=is_cleanup) for each in runs]
        self._processes = everyone[0]
        self._run_id = run.id
        self._cookies = [each.id for each in reversed(everyone)]
        self._processes.begin(self._boundary)

    def environment(self, given: Mapping[str, str] | None) -> dict[str, str]:
        """Return the environment of the process, with the cookies that find it and everything it starts."""
        # Without the variable that identifies the worker: processes that a completed run leaves behind may outlive it.
        return table.environment(given, self._run_id, ":".join(self._cookies), None)

    @contextlib.contextmanager
    def marking_forks(self) -> Iterator[None]:
        """Make a process that the block forks, and all forks of it, bear the cookies."""
        table.expect_fork()
        reset = _start_of_fork.set(self)
        try:
            yield
        finally:
            _start_of_fork.reset(reset)

    def mark(self) -> None:
        """Mark this process, which was just forked: its children inherit the environment, its forks the marks."""
        os.environ.update(self.environment({}))
        for cookie in self._cookies:
            table.mark_fork(cookie)

    def started(self, pid: int) -> None:
        """Follow the process."""
        self._processes.started(self._boundary, pid)

    def failed(self, error: BaseException) -> None:
        """Record that the process was not started."""
        self._processes.ended(self._boundary, type(error))


_start_of_fork: ContextVar[ProcessStart | None] = ContextVar("stoppable-start-of-fork", default=None)


def _mark_fork() -> None:
    start = _start_of_fork.get()
    if start is not None:
        _start_of_fork.set(None)  # its own forks inherit the marks
        start.mark()


# At the fork, before any code of the user can fork again: a second fork would be known by nothing else.
os.register_at_fork(after_in_child=_mark_fork)

"""Process groups as participants."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Mapping

from stoppable._core import clock, context
from stoppable._core.boundary import boundary, check
from stoppable._core.ids import new_id
from stoppable._core.node import RunNode
from stoppable._core.partial import append_partial
from stoppable._core.participants import Participant
from stoppable._core.policy import Policy
from stoppable._core.shield import shielded
from stoppable._core.state import Rung
from stoppable._engine import control
from stoppable._engine.alarms import Bell
from stoppable._engine.processes.command import Command
from stoppable._engine.processes.keeper import Force, Keeper
from stoppable._engine.processes.orphans import cookie
from stoppable._engine.processes.pipes import Capture, Pipes
from stoppable._engine.processes.table import environment
from stoppable._engine.processes.waker import Waker
from stoppable._engine.tasks import TaskParticipant
from stoppable.errors import InvalidArgument, StoppableError

_EXIT_TICKS = 200  # one second each for TERM and KILL

live: set[ProcessGroup] = set()
"""The groups that may have live processes."""


class ProcessGroup(Participant):
    """The processes that one command started, in their own session, managed by a thread (see ``Keeper``).

    It takes part in the run as the holder of its boundary, which is open while any of its processes may be alive.
    """

    def __init__(self, command: Command, *, ends_with_leader: bool) -> None:
        self.command = command
        self.ends_with_leader = ends_with_leader  # also end the processes that the leader leaves behind
        self.id: str = new_id()
        self.waker: Waker = Waker()
        self.bell: Bell = Bell()
        self.force: Force = Force.NONE
        self.signals: list[int] = []
        # Set by the keeper
        self.pid: int | None = None
        self.returncode: int | None = None
        self.error: Exception | None = None  # why it was not started
        self.kills: int = 0  # how often all processes were killed and searched
        self.cut = False  # it was told to end before the leader had ended
        self.settled: bool = False  # the group is gone, or cannot be ended
        self._gone = False
        self._lock = threading.RLock()
        self._timers: list[control.Timer] = []
        self._is_timed = False
        self._is_claimed = False
        self._boundary = boundary("spawn", command.name)
        self._run: RunNode | None = None
        self._opener: Participant | None = None
        self._shields: list[shielded] = []
        self._is_held_back = False
        self._captured: Capture | None = None
        self._is_captured = False
        self._is_wanted = False

    # As a participant

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Send TERM at CANCEL, but not while the starting code is in a shield, and KILL at KILL."""
        for group in targets:
            assert isinstance(group, cls)
            group._climb(rung)

    def _climb(self, rung: Rung) -> None:
        if rung > Rung.CANCEL:
            self.kill()
        elif (seconds := self._shielded_until() - clock.now()) > 0:
            self._is_held_back = True
            self._call_later(seconds, lambda: self._climb(rung))
        else:
            self._ask(Force.TERM)

    def _shielded_until(self) -> float:
        shields = list(self._shields)
        if isinstance(self._opener, TaskParticipant):
            # The task may be closing the process in an orderly way. If it is cancelled later, it ends the process as
            # it unwinds.
            shields += self._opener._shields or ()
        return max((shield._ends_at() for shield in shields), default=0.0)

    def shield_entered(self, shield: shielded) -> None:
        """Delay CANCEL."""
        self._shields.append(shield)

    def shield_left(self, shield: shielded) -> None:
        """Send a delayed CANCEL."""
        self._shields.remove(shield)
        if self._is_held_back:
            self._climb(Rung.CANCEL)

    def alive(self) -> bool:
        """Return whether any process may be alive; the keeper reports when none is."""
        return not self._gone

    def has_looked(self) -> bool:
        """Return whether its processes were searched again after the search that killed them."""
        return self.force is not Force.KILL or self.kills > 1

    def describe(self) -> str:
        """Name the group and its program."""
        return f"process group {self.pid} ({self.command.name})"

    # Commands, from any thread; the keeper carries them out

    def start(self, pipes: Pipes) -> None:
        """Enter the boundary and start the command; if the run was told to stop, raise AgentStopped instead."""
        self._boundary.__enter__()
        self._context = contextvars.copy_context()
        scope = context.current.get()
        run = self._run = scope.run_here()
        self._opener = None if run is None else self._boundary.holder
        self._captured = pipes.stdout if isinstance(pipes.stdout, Capture) else None
        env = environment(self.command.env, None if run is None else run.id, self.id, cookie())
        live.add(self)
        self._boundary.holder = self
        if isinstance(scope, shielded):
            scope._protect(self)
        if run is not None:
            run.when_ended(self.end)
            # Become the holder first, then read the rung: either CANCEL and KILL find this group, or it sees them.
            if run.rung is not None and run.rung >= Rung.CANCEL:
                self._climb(run.rung)
        try:
            self.waker.open()
            keeper = Keeper(self, pipes, env)
            threading.Thread(target=keeper.keep, name=f"stoppable-process {self.command.name}", daemon=True).start()
        except BaseException:
            # The thread could not start, or Ctrl-C came while it was starting.
            if self.claim():
                self.ended()
            raise

    def claim(self) -> bool:
        """Return True to the first caller only: the keeper, or ``start`` if the keeper could not be started."""
        with self._lock:
            is_first, self._is_claimed = not self._is_claimed, True
            return is_first

    def send_signal(self, signum: int) -> None:
        """Send a signal to the group, as a terminal does."""
        if not isinstance(signum, int) or not 0 <= signum < signal.NSIG:
            raise InvalidArgument(f"{signum!r} is not a signal: use one of signal.Signals")
        self.signals.append(signum)
        self.waker.wake()

    def end(self) -> None:
        """End all its processes: TERM, then KILL after the ``cancel`` seconds of the policy."""
        if self not in live:
            return  # it was never started, or has ended
        self._ask(Force.TERM)
        run = self._run
        if run is not None and run.outcome is None and run.kill_at() is not None:
            return  # the ladder of a stop will kill it, and the outcome will say so
        with self._lock:
            is_new, self._is_timed = not self._is_timed, True
        if is_new:
            self._call_later(self._policy.cancel, self.kill)

    def kill(self) -> None:
        """Kill all its processes now, and repeat that until none is found."""
        if self._ask(Force.KILL):
            self._call_later(self._policy.kill, self._give_up)

    @property
    def _policy(self) -> Policy:
        return Policy() if self._run is None else self._run.policy

    def _ask(self, force: Force) -> bool:
        with self._lock:
            if force <= self.force:
                return False
            self.force = force
        self.waker.wake()
        return True

    def _call_later(self, seconds: float, callback: Callable[[], object]) -> None:
        timer = control.get().call_at(clock.now() + seconds, callback)
        with self._lock:
            self._timers.append(timer)
            if self._gone:
                timer.cancel()

    def _give_up(self) -> None:
        self.settled = True
        self.bell.ring()

    # Called by the keeper

    def captured(self) -> None:
        """Record that the output is complete; if the process was cut short, append it to the run's partial."""
        with self._lock:
            self._is_captured = True
        if self.cut or self._is_wanted:
            self._append_partial()

    def ended(self) -> None:
        """Record that none of its processes is alive."""
        self.waker.close()
        if self._run is not None:
            self._run.forget(self.end)
        # Leaving the boundary records its fate, and settles the run if it waited for nothing else. Until then the group
        # counts as alive: the run must not end before the fate is recorded.
        self._boundary.__exit__(asyncio.CancelledError if self.cut else None, None, None)
        with self._lock:
            self._gone = True
            for timer in self._timers:
                timer.cancel()
        live.discard(self)
        self.settled = True
        self.bell.ring()

    # The exit code and the output, for the code that started it

    @property
    def started_pid(self) -> int:
        """The pid of the leader, which must have been started."""
        assert self.pid is not None, "it was started"
        return self.pid

    def exit_code(self) -> int:
        """Return the leader's exit code; raise AgentStopped if a stop ended it, or an error if it has none."""
        if self.error is not None:
            raise self.error
        if self.cut:
            check()
        if self.pid is None:
            raise StoppableError(f"{self.command.name!r} was not started: the run was stopped first")
        if self.returncode is None:
            raise StoppableError(f"{self.describe()} was killed but is still alive")
        return self.returncode

    def keep_output(self) -> None:
        """Append the output to the run's partial once it is complete, because it is not returned as a result."""
        with self._lock:
            self._is_wanted = True
            is_captured = self._is_captured
        if is_captured:
            self._append_partial()

    def _append_partial(self) -> None:
        with self._lock:
            captured, self._captured = self._captured, None
        text = "" if captured is None else captured.value().decode(errors="replace")
        if text:
            # If the run's partial is a value that text cannot be appended to, it stays unchanged.
            with contextlib.suppress(InvalidArgument):
                self._context.run(append_partial, text)


def _end_all() -> None:
    """End live groups when the interpreter exits, because the keeper threads end with it."""
    tick = threading.Event()
    for force in (Force.TERM, Force.KILL):
        for group in list(live):
            group._ask(force)
        for _ in range(_EXIT_TICKS):
            if not live:
                return
            tick.wait(0.005)


atexit.register(_end_all)
os.register_at_fork(after_in_child=live.clear)  # the groups and their keepers belong to the parent

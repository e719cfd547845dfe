"""Process groups as participants, and the thread that manages each: it starts, serves, signals and reaps."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import IO, Any

from stoppable._core import clock, context
from stoppable._core.boundary import boundary, check
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.run import append_partial
from stoppable._core.shield import shielded
from stoppable._core.values import Policy, Rung, new_id
from stoppable._engine import control
from stoppable._engine.control import Bell
from stoppable._engine.processes import table
from stoppable._engine.processes.command import Command, inherited_fds, not_started
from stoppable._engine.processes.pipes import Capture, Outgoing, OutputSink, Pipes, Pump, Waker
from stoppable._engine.processes.table import cookie, environment
from stoppable._engine.tasks import TaskParticipant
from stoppable.errors import InvalidArgument, StoppableError

_logger = logging.getLogger("stoppable")

_DRAIN_SECONDS = 1.0
_SHORT, _LONG = 0.02, 60.0
_UNKNOWN_EXIT = 255


class Force(IntEnum):
    """How hard to end a group."""

    NONE = 0
    TERM = 1
    KILL = 2


class GroupThread:
    """Manages one group, from its start to the end of its last process.

    Only this thread signals and reaps, so the leader is never reaped between a check and a signal. The leader is reaped
    last: until then its pid, which is also the id of the group and the session, is not reused, and a signal to them
    never reaches an unrelated process (G13).

    It sleeps in ``select`` until a pipe, a command or the leader's pidfd wakes it. Once the leader has ended, it
    searches ``/proc`` for remaining processes, at growing intervals, and settles the run when there are none.
    """

    def __init__(self, group: ProcessGroup, pipes: Pipes, env: dict[str, str]) -> None:
        self._group = group
        self._pipes = pipes
        self._env = env
        self._pidfd: int | None = None
        self._is_reaped = False
        self._is_term_sent = False
        self._drain_until: float | None = None
        self._is_captured = False
        self._is_searched = False  # this turn has searched for processes
        self._is_empty = False  # it is proven that none is left, so none can come
        self._kills = 0  # how often all processes were killed and searched
        self._pause = 0.0

    def manage(self) -> None:
        """Start the command, and manage its group until the last process has ended; the main function of the thread."""
        if not self._group.claim():
            return
        self._pump = Pump(self._group.waker)
        if self._spawn():
            try:
                while not self._is_over():
                    self._group.kills = self._kills
                    self._pump.turn(self._patience())
                    self._look_at_leader()
                    self._send_pending()
            except Exception as error:
                _logger.exception("process group %s was killed, because it could not be tracked", self._group.pid)
                self._group.error = error
                self._signal_all(signal.SIGKILL)
            self._reap()
        self._close_pidfd()
        self._pump.close()
        self._group.note_end()

    # How it begins

    def _spawn(self) -> bool:
        group, command, pipes = self._group, self._group.command, self._pipes
        if group.force is not Force.NONE:
            group.cut = True  # it was told to end before it started
            return False
        self._members = table.Members(group.id)
        try:
            self._leader = subprocess.Popen(  # noqa: S603 - what the caller asked for
                command.args,
                bufsize=0,
                stdin=_stream(pipes.stdin),
                stdout=_stream(pipes.stdout),
                stderr=_stream(pipes.stderr),
                shell=command.shell,
                cwd=command.cwd,
                env=self._env,
                start_new_session=True,
                pass_fds=inherited_fds(),
            )
        except Exception as error:
            group.error = not_started(command.name, command.cwd, error)
            return False
        self._members.session = self._leader.pid
        if self._leader.stdin is not None and isinstance(pipes.stdin, Outgoing):
            self._pump.write_to(self._leader.stdin, pipes.stdin)
        for file, sink in ((self._leader.stdout, pipes.stdout), (self._leader.stderr, pipes.stderr)):
            if file is not None and isinstance(sink, OutputSink):
                self._pump.read_from(file, sink)
        self._pidfd = table.open_pidfd(self._leader.pid)
        if self._pidfd is not None:
            self._pump.watch(self._pidfd)
        group.pid = self._leader.pid
        group.bell.ring()
        return True

    # One turn of the loop

    def _patience(self) -> float:
        """Return how many seconds the next turn may wait."""
        group = self._group
        if group.returncode is None:
            # KILL is repeated: a process may have forked while the group was listed.
            return _LONG if self._pidfd is not None and group.force < Force.KILL else _SHORT
        if not self._pump.is_drained:
            return _SHORT
        self._pause = min(self._pause * 2 + 0.001, _SHORT * 2 if group.force else 1.0)
        return self._pause

    def _look_at_leader(self) -> None:
        group = self._group
        if group.returncode is not None:
            return
        code = self._exit_code()
        if code is None:
            return
        self._close_pidfd()
        self._pump.end_inputs()
        self._drain_soon()
        group.returncode = code
        group.bell.ring()

    def _close_pidfd(self) -> None:
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            self._pump.unwatch(pidfd)
            os.close(pidfd)

    def _exit_code(self) -> int | None:
        """Return the exit code of the leader, or None; it stays a zombie, so that its pid is not reused."""
        if not hasattr(os, "waitid"):
            return self._exit_code_reaped()
        try:
            status = os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            # Other code reaped the leader by waiting for any child of this process, so the exit code is unknown.
            self._leader.returncode = _UNKNOWN_EXIT
            self._note_reaped()
            return _UNKNOWN_EXIT
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def _exit_code_reaped(self) -> int | None:
        """Do the same without ``waitid``, where the check reaps the leader: kill the rest of the group at once."""
        code = self._leader.poll()
        if code is not None:
            self._signal_group(signal.SIGKILL)
            self._note_reaped()
        return code

    def _send_pending(self) -> None:
        """Send pending signals: TERM once, because a second one would interrupt clean-up; KILL in every turn."""
        group = self._group
        self._is_searched = False
        while group.signals:
            self._signal_group(group.signals.pop(0))
        if group.force is Force.KILL:
            self._drain_soon()
            if not self._is_empty:
                self._signal_all(signal.SIGKILL)
            self._kills += 1
        elif group.force is Force.TERM and not self._is_term_sent:
            self._is_term_sent = True
            self._signal_all(signal.SIGTERM)

    def _signal_all(self, signum: signal.Signals) -> None:
        group = self._group
        group.cut = group.cut or group.returncode is None
        self._members.pids()  # notes children of members that bear no cookie: the death of a member makes them orphans
        self._signal_group(signum)
        if signum is signal.SIGTERM:
            self._signal_group(signal.SIGCONT)  # a suspended process would not handle TERM
        # Search after the signal: this also finds processes that left the group before it.
        each = self._members.each_for_kill if signum is signal.SIGKILL else self._members.each
        for pid in each():
            if not self._is_in_group(pid):
                self._members.signal(pid, signum)
        self._note_search()

    def _note_search(self) -> None:
        self._is_searched, self._is_empty = True, self._members.is_gone

    def _signal_group(self, signum: int) -> None:
        if not self._is_reaped:
            with contextlib.suppress(OSError):  # the group is empty, or all its processes belong to other users
                os.killpg(self._leader.pid, signum)

    def _is_in_group(self, pid: int) -> bool:
        try:
            return not self._is_reaped and os.getpgid(pid) == self._leader.pid
        except OSError:
            return False

    # How it ends

    def _drain_soon(self) -> None:
        """Read the pipes for one more second at most: an escaped process may hold them open for ever."""
        self._pump.draining = True
        if self._drain_until is None:
            self._drain_until = clock.now() + _DRAIN_SECONDS

    def _is_over(self) -> bool:
        """Return whether no process is alive and all output was read."""
        if self._drain_until is None:
            return False
        if not self._is_captured and (self._pump.is_drained or clock.now() >= self._drain_until):
            self._is_captured = True
            self._pump.end_outputs()
            self._group.note_captured()
        if self._group.returncode is None or not self._is_captured:
            return False
        if not self._is_searched and not self._is_empty:
            self._members.pids()
            self._note_search()
        if self._is_empty:
            return True
        if self._group.ends_with_leader:
            self._group.end()
        return False

    def _reap(self) -> None:
        if not table.is_readable():
            self._signal_group(signal.SIGKILL)  # processes that may remain cannot be found
        if not self._is_reaped:
            self._group.returncode = self._leader.wait()
            self._note_reaped()

    def _note_reaped(self) -> None:
        self._is_reaped = True
        self._members.session = None


def _stream(stream: Outgoing | OutputSink | int | IO[Any] | None) -> int | IO[Any] | None:
    return subprocess.PIPE if isinstance(stream, Outgoing | OutputSink) else stream


_EXIT_TICKS = 200  # one second each for TERM and KILL

live: set[ProcessGroup] = set()
"""The groups that may have live processes."""


class ProcessGroup(Participant):
    """The processes that one command started, in their own session, managed by a thread (see ``GroupThread``).

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
        # Set by its thread
        self.pid: int | None = None
        self.returncode: int | None = None
        self.error: Exception | None = None  # why it was not started
        self.kills: int = 0  # how often all processes were killed and searched, and that was not the end
        self.cut = False  # it was told to end before the leader had ended
        self.settled: bool = False  # the group is gone, or cannot be ended
        self._is_gone = False
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
        """Return whether any process may be alive; its thread reports when none is."""
        return not self._is_gone

    def has_looked(self) -> bool:
        """Return whether its processes were searched again after the search that killed them."""
        return self.force is not Force.KILL or self.kills > 1

    def describe(self) -> str:
        """Name the group and its program."""
        return f"process group {self.pid} ({self.command.name})"

    # Commands, from any thread; its thread carries them out

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
            manager = GroupThread(self, pipes, env)
            threading.Thread(target=manager.manage, name=f"stoppable-process {self.command.name}", daemon=True).start()
        except BaseException:
            # The thread could not start, or Ctrl-C came while it was starting.
            if self.claim():
                self.note_end()
            raise

    def claim(self) -> bool:
        """Return True to the first caller only: its thread, or ``start`` if that could not be started."""
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
            if self._is_gone:
                timer.cancel()

    def _give_up(self) -> None:
        self.settled = True
        self.bell.ring()

    # Called by its thread

    def note_captured(self) -> None:
        """Record that the output is complete; if the process was cut short, append it to the run's partial."""
        with self._lock:
            self._is_captured = True
        if self.cut or self._is_wanted:
            self._append_partial()

    def note_end(self) -> None:
        """Record that none of its processes is alive."""
        self.waker.close()
        if self._run is not None:
            self._run.forget(self.end)
        # Leaving the boundary records its fate, and settles the run if it waited for nothing else. Until then the group
        # counts as alive: the run must not end before the fate is recorded.
        self._boundary.__exit__(asyncio.CancelledError if self.cut else None, None, None)
        with self._lock:
            self._is_gone = True
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
    """End live groups when the interpreter exits, because their threads end with it."""
    tick = threading.Event()
    for force in (Force.TERM, Force.KILL):
        for group in list(live):
            group._ask(force)
        for _ in range(_EXIT_TICKS):
            if not live:
                return
            tick.wait(0.005)


atexit.register(_end_all)
os.register_at_fork(after_in_child=live.clear)  # the groups and their threads belong to the parent

"""The thread that manages a process group: it starts the command, serves the pipes, sends signals and reaps."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Any

from stoppable._core import clock
from stoppable._engine.processes import inherited_fds, table
from stoppable._engine.processes.errors import not_started
from stoppable._engine.processes.pipes import Outgoing, Pipes, Pump, Sink

if TYPE_CHECKING:
    from stoppable._engine.processes.group import ProcessGroup

_logger = logging.getLogger("stoppable")

_DRAIN_SECONDS = 1.0
_SHORT, _LONG = 0.02, 60.0
_UNKNOWN_EXIT = 255


class Force(IntEnum):
    """How hard to end a group."""

    NONE = 0
    TERM = 1
    KILL = 2


class Keeper:
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
        self._is_told = False
        self._drain_until: float | None = None
        self._is_captured = False
        self._is_searched = False  # this turn has searched for processes
        self._is_empty = False  # it is proven that none is left, so none can come
        self._pause = 0.0

    def keep(self) -> None:
        """Start the command, and manage its group until the last process has ended; the main function of the thread."""
        if not self._group.claim():
            return
        self._pump = Pump(self._group.waker)
        if self._spawn():
            try:
                while not self._is_over():
                    self._pump.turn(self._patience())
                    self._look_at_leader()
                    self._obey()
            except Exception as error:
                _logger.exception("process group %s was killed, because it could not be tracked", self._group.pid)
                self._group.error = error
                self._strike(signal.SIGKILL)
            self._reap()
        self._close_pidfd()
        self._pump.close()
        self._group.ended()

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
                pass_fds=inherited_fds.descriptors(),
            )
        except Exception as error:
            group.error = not_started(command.name, command.cwd, error)
            return False
        self._members.session = self._leader.pid
        if self._leader.stdin is not None and isinstance(pipes.stdin, Outgoing):
            self._pump.write_to(self._leader.stdin, pipes.stdin)
        for file, sink in ((self._leader.stdout, pipes.stdout), (self._leader.stderr, pipes.stderr)):
            if file is not None and isinstance(sink, Sink):
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
        if not self._pump.drained:
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
            ended = os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            # Other code reaped the leader by waiting for any child of this process, so the exit code is unknown.
            self._leader.returncode = _UNKNOWN_EXIT
            self._note_reaped()
            return _UNKNOWN_EXIT
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _exit_code_reaped(self) -> int | None:
        """Do the same without ``waitid``, where the check reaps the leader: kill the rest of the group at once."""
        code = self._leader.poll()
        if code is not None:
            self._signal_group(signal.SIGKILL)
            self._note_reaped()
        return code

    def _obey(self) -> None:
        """Send pending signals: TERM once, because a second one would interrupt clean-up; KILL in every turn."""
        group = self._group
        self._is_searched = False
        while group.signals:
            self._signal_group(group.signals.pop(0))
        if group.force is Force.KILL:
            self._drain_soon()
            if not self._is_empty:
                self._strike(signal.SIGKILL)
            group.kills += 1
        elif group.force is Force.TERM and not self._is_told:
            self._is_told = True
            self._strike(signal.SIGTERM)

    def _strike(self, signum: signal.Signals) -> None:
        group = self._group
        group.cut = group.cut or group.returncode is None
        self._members.pids()  # notes children of members that bear no cookie: the death of a member makes them orphans
        self._signal_group(signum)
        if signum is signal.SIGTERM:
            self._signal_group(signal.SIGCONT)  # a suspended process would not handle TERM
        # Search after the signal: this also finds processes that left the group before it.
        for pid in self._members.each():
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
        if not self._is_captured and (self._pump.drained or clock.now() >= self._drain_until):
            self._is_captured = True
            self._pump.end_outputs()
            self._group.captured()
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


def _stream(stream: Outgoing | Sink | int | IO[Any] | None) -> int | IO[Any] | None:
    return subprocess.PIPE if isinstance(stream, Outgoing | Sink) else stream

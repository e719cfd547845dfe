"""The reaper of an agent process: starts it, and ends only when the agent process and everything it started have ended.

Started as ``python -I -S reaper.py LEASH LINE COMMAND…``. It uses nothing but the standard library, and no code of the
user runs in it. Linux makes it the parent of all orphans below it (PR_SET_CHILD_SUBREAPER), whatever they did to their
session, environment and files. So if it has no child, no process that the agent started is left, however it was
started: that is a proof, where a search in ``/proc`` may miss one.

It is a process of its own because a subreaper must reap the orphans that it adopts, and cannot distinguish them from
its own children. In the agent process it would take exit codes that the agent's code waits for.

LEASH is a socket to the host. A byte, or the death of the host, means that everything is to be killed; so does the end
of the agent process. The last thing that the reaper does is to send the exit code of the agent process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from types import FrameType

_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # options of prctl
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SHORT, _LONG = 0.001, 1.0


def main(leash: int, line: int, command: list[str]) -> None:
    """Start the agent process, reap until there is no child left, and report."""
    prctl(_SET_SUBREAPER, 1)
    os.set_inheritable(leash, False)  # noqa: FBT003 - it takes no names
    agent = _start(command)
    os.close(line)  # the host reads the end of the line when the agent process closes it
    code = Reaper(leash, agent).reap()
    with contextlib.suppress(OSError):  # the host is gone
        os.write(leash, str(code).encode())


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, where the system has it."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start(command: list[str]) -> int:
    """Start the agent process, in a process group of its own, and return its pid; it dies with this process."""
    reaper = os.getpid()
    agent = os.fork()
    if agent != 0:
        return agent
    try:
        prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() == reaper:  # otherwise it died before the signal was set
            os.setpgid(0, 0)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by the interpreter, and an exec would keep that
                signal.signal(ignored, signal.SIG_DFL)
            os.execv(command[0], command)  # noqa: S606 - the interpreter of the host
    finally:
        os._exit(127)


class Reaper:
    """Reaps the agent process and the orphans, and kills them all once one of them is to end."""

    def __init__(self, leash: int, agent: int) -> None:
        self._leash: int | None = leash
        self._agent = agent
        self._code: int | None = None
        self._is_ending = False
        self._pause = _SHORT
        self._woken, waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._ignore)
        for number in _FORWARDED:  # whoever signals the process that the host has started means the agent
            signal.signal(number, self._forward)

    def reap(self) -> int:
        """Return the exit code of the agent process (a negative number for a signal), when no child is left."""
        while self._reap_some():
            if self._is_ending or self._code is not None:
                self._kill_children()
                self._pause = min(self._pause * 2, _LONG)  # one of them may belong to another user
                self._wait(self._pause)
            else:
                self._wait(None)
        return -signal.SIGKILL if self._code is None else self._code

    def _reap_some(self) -> bool:
        """Reap the children that have ended; return False if there are none left."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                self._pause = _SHORT
                if pid == self._agent:
                    self._code = os.waitstatus_to_exitcode(status)
        return False

    def _kill_children(self) -> None:
        """Kill the children, whose orphans are then children of this process too, so that the next round kills them.

        Only this process reaps its children, so none of these pids can have been reused.
        """
        for pid in _children():
            with contextlib.suppress(OSError):  # it belongs to another user
                os.kill(pid, signal.SIGKILL)
        if self._code is None:
            with contextlib.suppress(OSError):
                os.killpg(self._agent, signal.SIGKILL)  # all that can be done where there is no /proc

    def _wait(self, seconds: float | None) -> None:
        sources = [self._woken] if self._leash is None else [self._woken, self._leash]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._woken in ready:
            os.read(self._woken, 1 << 10)
        if self._leash in ready and self._leash is not None:
            self._is_ending = True
            if not os.read(self._leash, 1 << 10):
                self._leash = None  # the host is dead

    def _ignore(self, _number: int, _frame: FrameType | None) -> None:
        pass  # the signal wakes ``select``

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if self._code is None:
            os.kill(self._agent, number)


def _children() -> list[int]:
    try:
        with open("/proc/thread-self/children", "rb") as file:  # noqa: PTH123 - without further imports
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without it
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == os.getpid()]  # noqa: PTH208


def _parent(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - without further imports
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None  # it is gone


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

"""Finds the processes of a group among all those of the machine, and signals none but them (G13).

A process belongs to a group if it is in the session that the group's leader opened, or if the group's id is in its
environment: that is how one is found that left the session with ``setsid``. One that did both, and hid its environment
too, is not found (N6). Where there is no ``/proc`` nothing is found: the group is all that can be signalled.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

RUN = "STOPPABLE_RUN"
"""The environment variable with the id of the run that started a process."""
GROUPS = "STOPPABLE_GROUPS"
"""The one with the ids of the groups it belongs to: its own, after those of the process that started it."""

# A run has many groups, and one that ends must not take the others along: that is why a group has an id of its own.
# The outer ids are kept, so that a stoppable program that was killed is found with the processes it had started.

_PROC = "/proc"
_CHUNK = 1 << 16


def environment(given: Mapping[str, str] | None, run_id: str | None, group_id: str) -> dict[str, str]:
    """Return the environment of a new process: what was given, or else our own, with the cookies."""
    added = {RUN: run_id} if run_id is not None else {}
    outer = os.environ.get(GROUPS)
    added[GROUPS] = f"{outer}:{group_id}" if outer else group_id
    return {**(os.environ if given is None else given), **added}


def is_readable() -> bool:
    """Return whether this system shows its processes in ``/proc``."""
    return os.access(f"{_PROC}/self/environ", os.R_OK)


class Members:
    """The processes of one group that are alive now; zombies are dead."""

    __slots__ = ("_cookie", "_session")

    def __init__(self, group_id: str, session: int) -> None:
        self._cookie = group_id.encode()
        self._session: int | None = session

    def forget_session(self) -> None:
        """Go by the cookie alone: the leader was reaped, and the id of its session may be given to a stranger."""
        self._session = None

    def pids(self) -> list[int]:
        """Return who is alive; takes some microseconds for every process of the machine."""
        try:
            with os.scandir(_PROC) as entries:
                pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
        except OSError:
            return []
        return [pid for pid in pids if self.has(pid)]

    def has(self, pid: int) -> bool:
        """Return whether a process is one of them."""
        try:
            if self._session is not None and os.getsid(pid) == self._session:
                return not _is_zombie(pid)
            return self._bears_cookie(pid)  # a zombie bears nothing
        except OSError:
            return False  # it is gone, or somebody else's

    def signal(self, pid: int, signum: signal.Signals) -> None:
        """Signal a process if it is one of them, and nobody who got its pid meanwhile."""
        try:
            handle = open_pidfd(pid)
            if handle is None:
                # Without a pidfd a reuse shows itself in the start time; the last moment stays unguarded.
                started = _fields(pid)[_STARTED]
                if self.has(pid) and _fields(pid)[_STARTED] == started:
                    os.kill(pid, signum)
                return
            try:
                # Looked at after the pidfd was opened: if the pid has a new owner, the signal goes to the dead one.
                if self.has(pid):
                    signal.pidfd_send_signal(handle, signum)
            finally:
                os.close(handle)
        except OSError:
            pass  # it is gone, or we may not: then it stays alive, and the run that waits for it is lost

    def _bears_cookie(self, pid: int) -> bool:
        found = _read(f"{_PROC}/{pid}/environ")
        if self._cookie not in found:
            return False
        entries = [entry.partition(b"=") for entry in found.split(b"\0")]
        return any(name == GROUPS.encode() and self._cookie in value.split(b":") for name, _, value in entries)


_STATE, _THREADS, _STARTED = 0, 17, 19  # counted from the field after the name of the program (man 5 proc_pid_stat)


def _fields(pid: int) -> list[bytes]:
    return _read(f"{_PROC}/{pid}/stat").rpartition(b")")[2].split()


def _is_zombie(pid: int) -> bool:
    fields = _fields(pid)
    # Also in state Z: a program whose main thread ended before the others, which work on.
    return fields[_STATE] in b"ZX" and fields[_THREADS] in b"01"


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that means this one process for ever, readable once it has ended; None where there is none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # another system, an older kernel, no such process
        return None


def _read(path: str) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = chunk = os.read(handle, _CHUNK)
        while chunk:
            chunk = os.read(handle, _CHUNK)
            found += chunk
    finally:
        os.close(handle)
    return found

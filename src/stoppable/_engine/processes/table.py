"""Finds the processes of a group among all processes of the machine, and signals no others (G13).

A process belongs to a group if it is in the session of the group's leader, or if the group's id is in its environment,
which finds processes that left the session with ``setsid``. A process that left the session and hid its environment is
not found (N6). Without ``/proc`` no process is found, and only the process group as a whole can be signalled.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping

from stoppable import _api_key

RUN = "STOPPABLE_RUN"
"""The environment variable with the id of the run that started a process."""
WORKER = "STOPPABLE_WORKER"
"""The environment variable that identifies the worker that started a process (see orphans)."""
GROUPS = "STOPPABLE_GROUPS"
"""The environment variable with the ids of the groups of a process (its cookies), the outermost group first."""

# A group has its own id because a run has many groups, and the end of one must not end the others. The outer ids are
# kept, so that the processes of a stoppable program inside a run are found even after that program was killed.

_PROC = "/proc"
_CHUNK = 1 << 16
_LOOKS = 5
_EXEC_SECONDS = 0.002

_bare: set[int] = set()
"""Processes that never showed an environment during a whole search; later searches do not wait for them."""


def environment(
    given: Mapping[str, str] | None, run_id: str | None, group_id: str, worker: str | None
) -> dict[str, str]:
    """Return the environment of a new process: the given one, or this process's without secrets, plus the cookies."""
    added = {RUN: run_id} if run_id is not None else {}
    if run_id is not None and worker is not None:
        added[WORKER] = worker
    outer = os.environ.get(GROUPS)
    added[GROUPS] = f"{outer}:{group_id}" if outer else group_id
    if given is None:
        given = {name: value for name, value in os.environ.items() if name not in _api_key.SECRET}
    return {**given, **added}


def is_readable() -> bool:
    """Return whether this system shows its processes in ``/proc``."""
    return os.access(f"{_PROC}/self/environ", os.R_OK)


def children() -> list[int]:
    """Return the live children of this process."""
    return [pid for pid in listed() if _is_child(pid)]


def parents() -> dict[int, int]:
    """Return the parent of every live process, by pid."""
    found = {}
    for pid in listed():
        try:
            fields = _stat(pid)
            if not _is_zombie(fields):
                found[pid] = int(fields[_PARENT])
        except (OSError, IndexError):
            continue  # it is gone
    return found


def ancestors() -> list[int]:
    """Return the ancestors of this process, the nearest first."""
    above, found = parents(), [os.getppid()]
    while (parent := above.get(found[-1], 0)) > 0:
        found.append(parent)
    return found


def in_group(pgid: int) -> list[int]:
    """Return the processes of a process group."""
    return [pid for pid in listed() if _group_of(pid) == pgid]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None  # it is gone


class Members:
    """The live processes of one group; a zombie counts as dead."""

    __slots__ = ("_blank", "_cookie", "_known", "_session")

    def __init__(self, group_id: str, session: int) -> None:
        self._cookie = group_id.encode()
        self._session: int | None = session
        self._known: dict[int, bytes] = {}  # processes that had the cookie, with their start times
        self._blank: list[int] = []  # processes that show no environment

    def forget_session(self) -> None:
        """Use only the cookie from now on: the leader was reaped, so the id of its session may be reused."""
        self._session = None

    def pids(self) -> list[int]:
        """Return the live processes; takes a few microseconds for every process of the machine."""
        return list(self.each())

    def each(self) -> Iterator[int]:
        """Yield each live process as soon as it is found, because some end before all of them are listed."""
        looked_at: set[int] = set()
        self._blank = []
        # A process may fork and end during the search, so repeat it until there is no new process.
        for _ in range(_LOOKS):
            new = listed() - looked_at
            if not new:
                break
            looked_at |= new
            yield from filter(self.has, sorted(new, reverse=True))  # mostly the newest first
        _bare.intersection_update(looked_at)
        # During an exec a process shows no environment; some processes never have one.
        for _ in range(_LOOKS):
            blank, self._blank = self._blank, []
            if not blank:
                break
            threading.Event().wait(_EXEC_SECONDS)
            yield from filter(self.has, blank)
        _bare.update(self._blank)

    def has(self, pid: int) -> bool:
        """Return whether a process is a live member of the group."""
        try:
            session = os.getsid(pid)
            # Session 0 means a thread of the kernel, like most entries on a small machine. In a container it may also
            # mean that the session was opened outside; then the session of this process was too.
            if session == 0 and os.getsid(0) != 0:
                return False
            if session == self._session:
                return not _is_zombie(_stat(pid))
            return self._is_known(pid) or self._bears_cookie(pid)
        except OSError:
            return False  # it has ended, or belongs to another user

    def signal(self, pid: int, signum: signal.Signals) -> None:
        """Signal a process if it is a member, but not a new process with the same pid."""
        try:
            handle = open_pidfd(pid)
            if handle is None:
                # Without a pidfd, the start time shows whether the pid was reused, except in the last moment.
                before = started(pid)
                if self.has(pid) and started(pid) == before:
                    os.kill(pid, signum)
                return
            try:
                # Check with the pidfd open: if the pid is reused after that, the new process does not get the signal.
                if self.has(pid):
                    signal.pidfd_send_signal(handle, signum)
            finally:
                os.close(handle)
        except OSError:
            pass  # it has ended, or signalling it is not permitted: then it stays alive, and its run is lost

    def _is_known(self, pid: int) -> bool:
        """Return whether a process that had the cookie is alive: while dying it shows none, but still holds files."""
        return pid in self._known and is_running(pid, self._known[pid])

    def _bears_cookie(self, pid: int) -> bool:
        found = environ(pid)
        if not found and pid not in _bare and os.readlink(f"{_PROC}/{pid}/exe"):  # noqa: PTH115 - a Path is slower
            self._blank.append(pid)
        if self._cookie not in found:
            return False
        entries = [entry.partition(b"=") for entry in found.split(b"\0")]
        if not any(name == GROUPS.encode() and self._cookie in value.split(b":") for name, _, value in entries):
            return False
        self._known[pid] = started(pid)
        return True


# Indices of fields, counted after the name of the program (man 5 proc_pid_stat).
_STATE, _PARENT, _THREADS, _STARTED = 0, 1, 17, 19


def listed() -> set[int]:
    """Return the pids of all processes."""
    try:
        with os.scandir(_PROC) as entries:
            return {int(entry.name) for entry in entries if entry.name.isdigit()}
    except OSError:
        return set()


def started(pid: int) -> bytes:
    """Return the start time of a process, which distinguishes it from a later one with the same pid."""
    return _stat(pid)[_STARTED]


def is_running(pid: int, since: bytes) -> bool:
    """Return whether the process with this pid and start time is alive; a zombie counts as dead."""
    try:
        fields = _stat(pid)
        return fields[_STARTED] == since and not _is_zombie(fields)
    except (OSError, IndexError):
        return False


def _stat(pid: int) -> list[bytes]:
    return _read(f"{_PROC}/{pid}/stat").rpartition(b")")[2].split()


def _is_child(pid: int) -> bool:
    try:
        fields = _stat(pid)
    except OSError:
        return False  # it is gone
    return int(fields[_PARENT]) == os.getpid() and not _is_zombie(fields)


def environ(pid: int) -> bytes:
    """Return the environment that a process was started with."""
    return _read(f"{_PROC}/{pid}/environ")


def name(pid: int) -> str:
    """Return the name of a process, or a question mark if it has ended."""
    try:
        return _read(f"{_PROC}/{pid}/comm").decode(errors="replace").strip()
    except OSError:
        return "?"


def _is_zombie(fields: list[bytes]) -> bool:
    # A program whose main thread ended before its other threads is also in state Z, but it still runs.
    return fields[_STATE] in b"ZX" and fields[_THREADS] in b"01"


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that stays bound to one process and is readable once it has ended; None if unavailable."""
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

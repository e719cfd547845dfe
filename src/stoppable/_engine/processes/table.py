"""Finds the processes of a group among all those of the machine, and signals none but them (G13).

A process belongs to a group if it is in the session that the group's leader opened, or if the group's id is in its
environment: that is how one is found that left the session with ``setsid``. One that did both, and hid its environment
too, is not found (N6). Where there is no ``/proc`` nothing is found: the group is all that can be signalled.
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
"""The one with the process that started it for a run (see orphans)."""
GROUPS = "STOPPABLE_GROUPS"
"""The one with the ids of the groups it belongs to: its own, after those of the process that started it."""

# A run has many groups, and one that ends must not take the others along: that is why a group has an id of its own.
# The outer ids are kept, so that a stoppable program that was killed is found with the processes it had started.

_PROC = "/proc"
_CHUNK = 1 << 16
_LOOKS = 5
_EXEC_SECONDS = 0.002

_bare: set[int] = set()
"""Who had no environment when it was last looked at for a while: nobody waits for it to show one."""


def environment(
    given: Mapping[str, str] | None, run_id: str | None, group_id: str, worker: str | None
) -> dict[str, str]:
    """Return the environment of a new process: what was given, or else our own without secrets, with the cookies."""
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
    """Return our own children that are alive."""
    return [pid for pid in listed() if _is_child(pid)]


def parents() -> dict[int, int]:
    """Return every process that is alive with its parent."""
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
    """Return the processes above this one."""
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
    """The processes of one group that are alive now; zombies are dead."""

    __slots__ = ("_blank", "_cookie", "_known", "_session")

    def __init__(self, group_id: str, session: int) -> None:
        self._cookie = group_id.encode()
        self._session: int | None = session
        self._known: dict[int, bytes] = {}  # whose cookie was seen, with the time it started
        self._blank: list[int] = []  # who shows no environment

    def forget_session(self) -> None:
        """Go by the cookie alone: the leader was reaped, and the id of its session may be given to a stranger."""
        self._session = None

    def pids(self) -> list[int]:
        """Return who is alive; takes some microseconds for every process of the machine."""
        return list(self.each())

    def each(self) -> Iterator[int]:
        """Yield who is alive, each as soon as it is found: some live no longer than it takes to list them all."""
        looked_at: set[int] = set()
        self._blank = []
        # One may have forked and ended while it was looked for: again, until nobody new is there.
        for _ in range(_LOOKS):
            new = listed() - looked_at
            if not new:
                break
            looked_at |= new
            yield from filter(self.has, sorted(new, reverse=True))  # the latest first, most likely
        _bare.intersection_update(looked_at)
        # In the middle of an exec a process shows no environment; some never have one.
        for _ in range(_LOOKS):
            blank, self._blank = self._blank, []
            if not blank:
                break
            threading.Event().wait(_EXEC_SECONDS)
            yield from filter(self.has, blank)
        _bare.update(self._blank)

    def has(self, pid: int) -> bool:
        """Return whether a process is one of them."""
        try:
            session = os.getsid(pid)
            # A thread of the kernel: most of what a small machine lists. In a container it may also be that the session
            # was opened outside; then our own was too.
            if session == 0 and os.getsid(0) != 0:
                return False
            if session == self._session:
                return not _is_zombie(_stat(pid))
            return self._is_known(pid) or self._bears_cookie(pid)
        except OSError:
            return False  # it is gone, or somebody else's

    def signal(self, pid: int, signum: signal.Signals) -> None:
        """Signal a process if it is one of them, and nobody who got its pid meanwhile."""
        try:
            handle = open_pidfd(pid)
            if handle is None:
                # Without a pidfd a reuse shows itself in the start time; the last moment stays unguarded.
                before = started(pid)
                if self.has(pid) and started(pid) == before:
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

    def _is_known(self, pid: int) -> bool:
        """Return whether one that bore the cookie is alive: while it dies it shows none, and still holds files."""
        return pid in self._known and is_running(pid, self._known[pid])

    def _bears_cookie(self, pid: int) -> bool:
        found = environ(pid)
        if not found and pid not in _bare and os.readlink(f"{_PROC}/{pid}/exe"):  # noqa: PTH115 - no Path is made
            self._blank.append(pid)
        if self._cookie not in found:
            return False
        entries = [entry.partition(b"=") for entry in found.split(b"\0")]
        if not any(name == GROUPS.encode() and self._cookie in value.split(b":") for name, _, value in entries):
            return False
        self._known[pid] = started(pid)
        return True


# Counted from the field after the name of the program (man 5 proc_pid_stat).
_STATE, _PARENT, _THREADS, _STARTED = 0, 1, 17, 19


def listed() -> set[int]:
    """Return every pid that is there now."""
    try:
        with os.scandir(_PROC) as entries:
            return {int(entry.name) for entry in entries if entry.name.isdigit()}
    except OSError:
        return set()


def started(pid: int) -> bytes:
    """Return when a process was started, which tells it from a later one with its pid."""
    return _stat(pid)[_STARTED]


def is_running(pid: int, since: bytes) -> bool:
    """Return whether the process that was started then is alive; a zombie is dead."""
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
    """Return what a process calls itself, or a question mark if it is gone."""
    try:
        return _read(f"{_PROC}/{pid}/comm").decode(errors="replace").strip()
    except OSError:
        return "?"


def _is_zombie(fields: list[bytes]) -> bool:
    # Also in state Z: a program whose main thread ended before the others, which work on.
    return fields[_STATE] in b"ZX" and fields[_THREADS] in b"01"


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that means one process for ever, readable once it has ended; None where there is none."""
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

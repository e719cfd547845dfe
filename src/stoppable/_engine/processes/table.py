"""The processes of this machine: those of a group, which alone are signalled (G13), and those of dead workers.

**How ``/proc`` is read.** Python's own functions release the interpreter at each system call. Where other threads
compute, a thread gets it back only after 5 ms or more each time, and a search through a hundred processes, with
hundreds of calls, would take seconds. The files that a search reads of every process are therefore read without a
release; these reads never block.

**What belongs to a group.** A process does if it is in the session of the group's leader, if its parent does, or if it
bears the group's id: in its environment, which survives ``setsid`` and the death of its parent, or, for a fork that
executes no other program and so still shows the environment of its parent, in the name of a memory mapping (see
``mark_fork``). A process that left the session, lost its parent and cleared its environment is not found (N6). What a
stranger starts for a member, such as a daemon that ran before, is a stranger too. Without ``/proc`` no process is
found, and only the process group as a whole can be signalled.

**What proves that no process is left.** A search takes a millisecond or two, and processes may fork and end meanwhile,
so a search that finds none proves nothing by itself. It does if it looked at every process that was listed. The kernel
lists processes by rising pids, and gives rising pids to new ones. Suppose that some member was alive at every moment of
the listing. The first of them lived from the beginning. If it was not listed, it had ended before the listing came to
its pid; so its successor, with a higher pid, already lived when the listing came to that one; and so on, up to the
member that lived at the end, which must have been listed. So if no listed process is a member, there was a moment
without members, and members come only from members.

That fails if a listed process ended before it was looked at, because it may have been a member that had forked; or if
the pids started again at 1 meanwhile. Then the search is repeated, and as long as none was complete, the group counts
as alive. The repetition looks only at processes that are new, so it is fast, and rarely misses one. A process that was
looked at before, or whose parent is a stranger that adopts no orphans, is a stranger whenever it ends.

**Orphans** (N13). A dead worker's ladders no longer run, so what it left behind is killed. Every process of a run has
an environment variable that identifies the worker that started it. If that worker is gone, the run has ended, and its
processes are killed, unless they were started in ``detached()``. Every supervisor checks regularly.

Plain processes have only the id of their run, because those that a completed run leaves behind live on. They are killed
if their run ended because its worker died, which the store knows.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from stoppable import _secrets

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Return the seconds since the machine was started."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str:
    """Return the system's id of the current boot, or an empty string if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


PROC = "/proc"
_CHUNK = 1 << 16
_STAT_BYTES = 2048
_NAME_OFFSET = 19  # of d_name in struct dirent64: after inode, offset, length and type


def _load() -> ctypes.PyDLL:
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.opendir.argtypes, libc.opendir.restype = [ctypes.c_char_p], ctypes.c_void_p
    libc.closedir.argtypes = [ctypes.c_void_p]
    libc.open.argtypes = [ctypes.c_char_p, ctypes.c_int]
    libc.read.argtypes, libc.read.restype = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_ssize_t
    return libc


_libc = _load()
_read_entry = getattr(_libc, "readdir64", _libc.readdir)
_read_entry.argtypes, _read_entry.restype = [ctypes.c_void_p], ctypes.c_void_p


def list_pids() -> list[int]:
    """Return the pids of all processes, in the order in which the kernel looks at them: the lowest first."""
    directory = _libc.opendir(PROC.encode())
    if not directory:
        return []
    pids = []
    try:
        while entry := _read_entry(directory):
            name = ctypes.string_at(entry + _NAME_OFFSET)
            if name.isdigit():
                pids.append(int(name))
    finally:
        _libc.closedir(directory)
    return pids


def last_pid() -> int:
    """Return the newest pid that the kernel gave; it grows with every process, until the numbers start again."""
    try:
        return int(_short(f"{PROC}/loadavg").rpartition(b" ")[2])
    except OSError:
        return 0


def _read_stat(pid: int) -> bytes:
    """Return the line with the state of a process; raise OSError if it is gone."""
    return _short(f"{PROC}/{pid}/stat")


def _short(path: str) -> bytes:
    handle = _libc.open(path.encode(), os.O_RDONLY | os.O_CLOEXEC)
    if handle < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    try:
        buffer = ctypes.create_string_buffer(_STAT_BYTES)
        size = _libc.read(handle, buffer, _STAT_BYTES)
        if size < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return ctypes.string_at(buffer, size)
    finally:
        _libc.close(handle)


def environ(pid: int) -> bytes:
    """Return the environment that a process was started with; this may block, and releases the interpreter twice."""
    handle = os.open(f"{PROC}/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = [os.read(handle, _CHUNK)]
        while len(pieces[-1]) == _CHUNK:  # only the end is shorter
            pieces.append(os.read(handle, _CHUNK))
    finally:
        _libc.close(handle)
    return b"".join(pieces)


def _read_maps(pid: int) -> bytes:
    """Return the memory mappings of a process; this may block, and releases the interpreter."""
    with open(f"{PROC}/{pid}/maps", "rb") as file:  # noqa: PTH123 - a Path is slower
        return file.read()


RUN = "STOPPABLE_RUN"
"""The environment variable with the id of the run that started a process."""
WORKER = "STOPPABLE_WORKER"
"""The environment variable that identifies the worker that started a process (see above)."""
GROUPS = "STOPPABLE_GROUPS"
"""The environment variable with the ids of the groups of a process (its cookies), the outermost group first."""

# A group has its own id because a run has many groups, and the end of one must not end the others. The outer ids are
# kept, so that the processes of a stoppable program inside a run are found even after that program was killed.

_LOOKS = 10
_CHASE_LOOKS = 1000  # about ten milliseconds
_PIDS = 1 << 22  # there are never more
_TICKS = os.sysconf("SC_CLK_TCK")


def environment(
    base: Mapping[str, str] | None, run_id: str | None, group_id: str, worker: str | None
) -> dict[str, str]:
    """Return the environment of a new process: the given one, or this process's without secrets, plus the cookies."""
    cookies = {RUN: run_id} if run_id is not None else {}
    if run_id is not None and worker is not None:
        cookies[WORKER] = worker
    outer = os.environ.get(GROUPS)
    cookies[GROUPS] = f"{outer}:{group_id}" if outer else group_id
    if base is None:
        base = _secrets.inheritable()
    return {**base, **cookies}


def is_readable() -> bool:
    """Return whether this system shows its processes in ``/proc``."""
    return os.access(f"{PROC}/self/environ", os.R_OK)


class Stat(NamedTuple):
    """What the kernel tells about a process."""

    name: str
    is_dead: bool
    """It is a zombie."""
    parent: int
    group: int
    session: int
    started: bytes
    """When it was started, which distinguishes it from a later process with the same pid."""
    is_fork: bool
    """It has not executed a program since it was forked."""
    is_kernel: bool
    env: tuple[bytes, bytes]
    """Where its environment begins and ends; zeros during an exec, and while it dies."""


# Indices of fields, counted after the name of the program (man 5 proc_pid_stat), and bits of the flags.
_STATE, _PARENT, _GROUP, _SESSION, _FLAGS, _THREADS, _STARTED, _ENV = 0, 1, 2, 3, 6, 17, 19, 47
_FORKED_NO_EXEC, _KERNEL_THREAD = 0x40, 0x200000


def look_at(pid: int) -> Stat:
    """Return what the kernel tells about a process; raise OSError if it is gone."""
    head, _, tail = _read_stat(pid).rpartition(b")")
    fields = tail.split()
    if len(fields) < _ENV + 2:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone")
    flags = int(fields[_FLAGS])
    return Stat(
        head.partition(b"(")[2].decode(errors="replace"),
        # A program whose main thread ended before its other threads is also in state Z, but it still runs.
        fields[_STATE] in b"ZX" and fields[_THREADS] in b"01",
        int(fields[_PARENT]),
        int(fields[_GROUP]),
        int(fields[_SESSION]),
        fields[_STARTED],
        bool(flags & _FORKED_NO_EXEC),
        bool(flags & _KERNEL_THREAD),
        (fields[_ENV], fields[_ENV + 1]),
    )


def snapshot() -> dict[int, Stat]:
    """Return all live processes, by pid."""
    processes = {}
    for pid in list_pids():
        with contextlib.suppress(OSError):  # it is gone
            stat = look_at(pid)
            if not stat.is_dead:
                processes[pid] = stat
    return processes


def children() -> list[int]:
    """Return the live children of this process."""
    return [pid for pid, stat in snapshot().items() if stat.parent == os.getpid()]


def ancestors() -> list[int]:
    """Return the ancestors of this process, the nearest first."""
    alive, lineage = snapshot(), [os.getppid()]
    while lineage[-1] in alive and alive[lineage[-1]].parent > 0:
        lineage.append(alive[lineage[-1]].parent)
    return lineage


def in_group(pgid: int) -> list[int]:
    """Return the processes of a process group."""
    return [pid for pid, stat in snapshot().items() if stat.group == pgid]


def start_time(pid: int) -> bytes:
    """Return the start time of a process; raise OSError if it is gone."""
    return look_at(pid).started


def is_running(pid: int, since: bytes) -> bool:
    """Return whether the process with this pid and start time is alive; a zombie counts as dead."""
    try:
        stat = look_at(pid)
    except OSError:
        return False
    return stat.started == since and not stat.is_dead


def name(pid: int) -> str:
    """Return the name of a process, or a question mark if it has ended."""
    try:
        return look_at(pid).name
    except OSError:
        return "?"


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that stays bound to one process and is readable once it has ended; None if unavailable."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # another system, an older kernel, no such process
        return None


# The groups of a process


_MARK = "stoppable-"
_MARKED = re.compile(rb"/memfd:" + _MARK.encode() + rb"(\w+)")
_marks_forks = False


def expect_fork() -> None:
    """Look for marks of forks from now on."""
    global _marks_forks
    _marks_forks = True


def mark_fork(group_id: str) -> None:
    """Mark this process, which was just forked, and all forks of it, as members of a group.

    The mark is a mapping of a nameless file, whose label ``/proc`` shows. Unlike a descriptor, a program that closes
    all its files to become a daemon keeps it. An exec drops it, and then the environment has the id.
    """
    with contextlib.suppress(OSError, AttributeError):  # another system; then the fork is known by its pid only
        descriptor = os.memfd_create(_MARK + group_id)
        try:
            libc = ctypes.CDLL(None)
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap(None, 1, _PROT_READ, _MAP_SHARED, descriptor, 0)
        finally:
            os.close(descriptor)


_PROT_READ, _MAP_SHARED = 1, 1

_groups_of: dict[int, tuple[bytes, frozenset[bytes]]] = {}
"""By pid, the start time of a process and the ids of its groups: they are read once, by the first search."""


def _read_groups(pid: int, stat: Stat) -> frozenset[bytes] | None:
    """Return the ids of the groups that a process bears, or None if it cannot be known at the moment."""
    earlier = _groups_of.get(pid)
    if earlier is not None and earlier[0] == stat.started:
        return earlier[1]
    ids: set[bytes] = set()
    try:
        content = environ(pid)
        if not content and (stat.env[0] != stat.env[1] or stat.env[0] == b"0"):
            return None  # it is in an exec, or dies
        for entry in content.split(b"\0"):
            variable, _, value = entry.partition(b"=")
            if variable == _GROUPS:
                ids.update(value.split(b":"))
        if stat.is_fork and _marks_forks:
            ids.update(_MARKED.findall(_read_maps(pid)))
    except PermissionError:
        pass  # it belongs to another user
    except OSError:
        return None  # it is gone
    groups = frozenset(ids)
    if not (stat.is_fork and stat.parent == os.getpid()):  # one that this process is starting gets its marks soon
        _groups_of[pid] = stat.started, groups
    return groups


_GROUPS = GROUPS.encode()


def _adopters(processes: dict[int, Stat]) -> set[int]:
    """Return the processes that may have children which they did not start.

    An ancestor of this process may adopt an orphan of a member. The children of any other stranger are strangers.
    """
    adopters, above = {1}, os.getpid()
    while above not in adopters:
        adopters.add(above)
        if above in processes:
            above = processes[above].parent
    return adopters


class Members:
    """The live processes of one group; a zombie counts as dead."""

    __slots__ = ("_cookie", "_dead", "_known", "_since", "is_gone", "parents", "session")

    def __init__(self, group_id: str, session: int | None = None) -> None:
        """Create the group, before the first process that bears its id is started."""
        self._cookie = group_id.encode()
        self.session = session
        """The session whose processes are members; None once its id may be reused, because its leader was reaped."""
        self._known: dict[int, bytes] = {}  # all processes that were members, with their start times
        self._dead: dict[int, bytes] = {}  # the zombies that were seen, with their start times
        self._since = int(boot_clock() * _TICKS) - 1
        self.is_gone = False
        """Whether the last search has proven that no member is alive."""
        self.parents: dict[int, int] = {}
        """The parents of the members that the last search returned."""

    def pids(self) -> list[int]:
        """Return the live processes; takes one or two milliseconds for a hundred processes of the machine."""
        return sorted(self.each())

    def each(self) -> Iterator[int]:
        """Yield each live process as soon as it is found, because some end before all of them are listed."""
        strangers: dict[int, Stat] = {}
        for _ in range(_LOOKS):
            is_empty = True
            for pid in self._search(strangers):
                is_empty = False
                yield pid
            if self.is_gone or not is_empty:
                return

    def each_for_kill(self) -> Iterator[int]:
        """Yield each live process, and chase those that are never where they were seen last."""
        known, is_moving = set(self._known), True
        for pid in self.each():
            is_moving = is_moving and pid not in known
            yield pid
        if is_moving and not self.is_gone:
            yield from self._chase()

    def _chase(self) -> Iterator[int]:
        """Yield each member that begins in the next moments, as soon as it is there.

        A process that forks and ends, over and over, lives shorter than a search takes where a machine has thousands
        of processes, its own zombies among them. Each new pid is therefore looked at by itself.
        """
        newest = last_pid()
        for _ in range(_CHASE_LOOKS):
            before, newest = newest, last_pid()
            for pid in range(newest, before, -1):
                with contextlib.suppress(OSError):  # it is gone
                    stat = look_at(pid)
                    if self._is_member(pid, stat, is_child_of_stranger=False) and self._note(pid, stat):
                        yield pid

    def _search(self, strangers: dict[int, Stat]) -> Iterator[int]:
        """Look at all processes except those that an earlier round has ruled out, and add those that this one does."""
        self.is_gone, self.parents = False, {}
        is_complete, newest = True, last_pid()
        looked_at: dict[int, Stat] = {}
        unknown: dict[int, Stat] = {}
        pids = list_pids()
        for pid in sorted(set(pids) - strangers.keys(), key=lambda pid: (newest - pid) % _PIDS):  # the newest first
            try:
                looked_at[pid] = look_at(pid)
            except OSError:
                is_complete = False  # it ended after it was listed, and may have been a member
        adopters = _adopters({**strangers, **looked_at})
        for pid, stat in reversed(looked_at.items()):  # parents before their children
            is_child_of_stranger = stat.parent in strangers and stat.parent not in adopters
            is_member = self._is_member(pid, stat, is_child_of_stranger=is_child_of_stranger)
            if not is_member:
                (strangers if is_member is False else unknown)[pid] = stat
            elif self._note(pid, stat):
                is_complete = False
                yield pid
        for pid in self._descendants(strangers, unknown):
            is_complete = False
            yield pid
        for memory in (_groups_of, self._dead):
            for pid in memory.keys() - pids:
                memory.pop(pid, None)
        self.is_gone = is_complete and not unknown and last_pid() >= newest

    def _descendants(self, *candidates: dict[int, Stat]) -> Iterator[int]:
        """Yield the children of members that bear no id: a fork, ``env -i``."""
        is_growing = True
        while is_growing:
            is_growing = False
            for others in candidates:
                below = [pid for pid, stat in others.items() if stat.parent in self.parents and not stat.is_dead]
                is_growing = is_growing or bool(below)
                yield from [pid for pid in below if self._note(pid, others.pop(pid))]

    def _note(self, pid: int, stat: Stat) -> bool:
        """Note a live member, and return whether it counts; the children of one that does not count do."""
        self.parents[pid] = stat.parent
        if self._is_spared(pid, stat):
            return False
        self._known[pid] = stat.started
        return True

    def _is_spared(self, pid: int, stat: Stat) -> bool:  # noqa: ARG002 - for subclasses
        return False

    def _is_member(self, pid: int, stat: Stat, *, is_child_of_stranger: bool) -> bool | None:
        """Return whether a process is a live member, or None if it cannot be known at the moment."""
        is_known = self._known.get(pid) == stat.started or stat.session == self.session
        if is_known and not stat.is_dead:
            return True
        is_young = int(stat.started) >= self._since and not stat.is_kernel
        if not is_known and (is_child_of_stranger or not is_young):
            return False
        if stat.is_dead:
            # When it was listed it may have lived, and have forked after that; unless it was dead in an earlier round.
            was_dead = self._dead.get(pid) == stat.started
            self._dead[pid] = stat.started
            return False if was_dead else None
        groups = _read_groups(pid, stat)
        return None if groups is None else self._cookie in groups

    def has(self, pid: int) -> bool:
        """Return whether a process is a live member that was found before."""
        return pid in self._known and is_running(pid, self._known[pid])

    def signal(self, pid: int, signum: signal.Signals) -> bool:
        """Signal a process if it is a member, but not a new process with the same pid; return whether it was sent."""
        try:
            handle = open_pidfd(pid)
            if handle is None:
                # Without a pidfd, the start time shows whether the pid was reused, except in the last moment.
                is_member = self.has(pid)
                if is_member:
                    os.kill(pid, signum)
                return is_member
            try:
                # Check with the pidfd open: if the pid is reused after that, the new process does not get the signal.
                is_member = self.has(pid)
                if is_member:
                    signal.pidfd_send_signal(handle, signum)
            finally:
                os.close(handle)
        except OSError:
            return False  # it has ended, or signalling it is not permitted: then it stays alive, and its run is lost
        return is_member


@cache
def _place() -> str:
    """Identify this boot and pid namespace: a pid is meaningless in another one."""
    return f"{boot_id()}/{Path('/proc/self/ns/pid').readlink()}"


def cookie() -> str | None:
    """Return a value that identifies this process in the environment of those it starts; None without ``/proc``."""
    with contextlib.suppress(OSError):
        return f"{_place()}/{os.getpid()}/{start_time(os.getpid()).decode()}"
    return None


def end_orphans() -> list[int]:
    """Kill the processes of runs whose worker is gone, and return their pids; those of another user are left alone."""
    return _end_all(_is_orphan)


def end_processes_of(runs: Collection[str]) -> list[int]:
    """Kill the processes, including plain ones, of runs whose worker died, and return their pids."""
    own = {os.getpid(), *ancestors()}  # this program may have been started by such a run
    return _end_all(lambda pid: pid not in own and _cookie_of(pid, RUN) in runs)


def _end_all(is_one: Callable[[int], bool]) -> list[int]:
    with contextlib.suppress(OSError):
        return [pid for pid in list_pids() if pid != os.getpid() and _end(pid, is_one)]
    return []


def _end(pid: int, is_one: Callable[[int], bool]) -> bool:
    try:
        if not is_one(pid):
            return False
        handle = open_pidfd(pid)
        if handle is None:
            os.kill(pid, signal.SIGKILL)
            return True
        try:
            # Check again with the pidfd open: if the pid is reused after that, the new process does not get the signal.
            if is_one(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    except OSError:
        pass  # it has ended, or belongs to another user
    return False


def _is_orphan(pid: int) -> bool:
    # The innermost worker: a stoppable program that was started by a run overwrites the variable for its children.
    starter = _cookie_of(pid, WORKER)
    if starter is None:
        return False
    place, worker, since = starter.rsplit("/", 2) if starter.count("/") > 1 else ("", "", "")
    if place != _place() or not worker.isdecimal():
        return False
    return not is_running(int(worker), since.encode())


def _cookie_of(pid: int, name: str) -> str | None:
    prefix = name.encode() + b"="
    entries = environ(pid).split(b"\0")
    return next(
        (entry.partition(b"=")[2].decode(errors="replace") for entry in entries if entry.startswith(prefix)), None
    )

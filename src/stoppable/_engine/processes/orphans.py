"""Kills processes that a dead worker left behind, because its ladders no longer run (N13).

Every process of a run has an environment variable that identifies the worker that started it. If that worker is gone,
the run has ended, and its processes are killed, unless they were started in ``detached()``. Every supervisor checks
regularly.

Plain processes have only the id of their run, because those that a completed run leaves behind live on. They are killed
if their run ended because its worker died, which the store knows.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from stoppable._engine.boot import boot_id
from stoppable._engine.processes import proc_files, table


@cache
def _place() -> str:
    """Identify this boot and pid namespace: a pid is meaningless in another one."""
    return f"{boot_id()}/{Path('/proc/self/ns/pid').readlink()}"


def cookie() -> str | None:
    """Return a value that identifies this process in the environment of those it starts; None without ``/proc``."""
    with contextlib.suppress(OSError):
        return f"{_place()}/{os.getpid()}/{table.started(os.getpid()).decode()}"
    return None


def end_orphans() -> list[int]:
    """Kill the processes of runs whose worker is gone, and return their pids; those of another user are left alone."""
    return _end_all(_is_orphan)


def end_processes_of(runs: Collection[str]) -> list[int]:
    """Kill the processes, including plain ones, of runs whose worker died, and return their pids."""
    own = {os.getpid(), *table.ancestors()}  # this program may have been started by such a run
    return _end_all(lambda pid: pid not in own and _cookie_of(pid, table.RUN) in runs)


def _end_all(is_one: Callable[[int], bool]) -> list[int]:
    with contextlib.suppress(OSError):
        return [pid for pid in proc_files.listed() if pid != os.getpid() and _end(pid, is_one)]
    return []


def _end(pid: int, is_one: Callable[[int], bool]) -> bool:
    try:
        if not is_one(pid):
            return False
        handle = table.open_pidfd(pid)
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
    starter = _cookie_of(pid, table.WORKER)
    if starter is None:
        return False
    place, worker, started = starter.rsplit("/", 2) if starter.count("/") > 1 else ("", "", "")
    if place != _place() or not worker.isdecimal():
        return False
    return not table.is_running(int(worker), started.encode())


def _cookie_of(pid: int, name: str) -> str | None:
    prefix = name.encode() + b"="
    entries = table.environ(pid).split(b"\0")
    return next(
        (entry.partition(b"=")[2].decode(errors="replace") for entry in entries if entry.startswith(prefix)), None
    )

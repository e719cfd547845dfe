"""Kills processes that a dead worker left behind: its ladders no longer run (N13).

Every process of a run has an environment variable that names the process that started it. If that one is gone, the run
has ended, and its processes are killed, unless they were started in ``detached()``. Every supervisor checks regularly.

Plain processes only have the id of their run, because leftovers of a completed run live on. They are killed if their
run ended because its worker died, which the store knows.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from stoppable._engine.boot import boot_id
from stoppable._engine.processes import table


@cache
def _place() -> str:
    """Identify this boot and pid namespace: a pid is meaningless in another one."""
    return f"{boot_id()}/{Path('/proc/self/ns/pid').readlink()}"


def cookie() -> str | None:
    """Return a value that identifies this process as the starter of another; None without ``/proc``."""
    with contextlib.suppress(OSError):
        return f"{_place()}/{os.getpid()}/{table.started(os.getpid()).decode()}"
    return None


def end_orphans() -> list[int]:
    """Kill the processes of runs whose worker is gone, and return their pids; those of another user are left alone."""
    return _end_all(_is_orphan)


def end_processes_of(runs: Collection[str]) -> list[int]:
    """Kill the processes, plain ones too, of runs that ended with their worker, and return their pids."""
    own = {os.getpid(), *table.ancestors()}  # of a program that was started by such a run
    return _end_all(lambda pid: pid not in own and _cookie_of(pid, table.RUN) in runs)


def _end_all(is_one: Callable[[int], bool]) -> list[int]:
    with contextlib.suppress(OSError):
        return [pid for pid in table.listed() if pid != os.getpid() and _end(pid, is_one)]
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
            # Looked at again with the pidfd open: if the pid has a new owner, the signal goes to the dead one.
            if is_one(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    except OSError:
        pass  # it is gone, or somebody else's
    return False


def _is_orphan(pid: int) -> bool:
    # The last one given: a program of ours that was started by a run has its own, and its children bear that.
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

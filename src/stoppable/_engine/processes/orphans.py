"""Ends what a worker left running that was itself killed from outside: nobody is left to climb its ladders (N13).

Every process of a run bears in its environment who started it. If that process is gone, the run is over, and so is what
it started, unless it was started in ``detached()``. Looked for by every supervisor, now and then.

Plain processes bear only their run: what a run left behind that completed lives on. They end with a run that its
worker did not see to its end, which a store knows.
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
    """Name this boot and pid namespace: a pid means nothing in another one."""
    return f"{boot_id()}/{Path('/proc/self/ns/pid').readlink()}"


def cookie() -> str | None:
    """Return what says that this very process started another; None where there is no ``/proc``."""
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

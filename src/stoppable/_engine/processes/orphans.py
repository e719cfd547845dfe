"""Ends what a worker left running that was itself killed from outside: nobody is left to climb its ladders (N13).

Every process of a run bears in its environment who started it. If that process is gone, the run is over, and so is what
it started, unless it was started in ``detached()``. Looked for by every supervisor, now and then.
"""

from __future__ import annotations

import contextlib
import os
import signal
from functools import cache
from pathlib import Path

from stoppable._engine.processes import table


@cache
def _place() -> str:
    """Name this boot and pid namespace: a pid means nothing in another one."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def cookie() -> str | None:
    """Return what says that this very process started another; None where there is no ``/proc``."""
    with contextlib.suppress(OSError):
        return f"{_place()}/{os.getpid()}/{table.started(os.getpid()).decode()}"
    return None


def end_orphans() -> list[int]:
    """Kill the processes of runs whose worker is gone, and return their pids; those of another user are left alone."""
    with contextlib.suppress(OSError):
        return [pid for pid in table.listed() if pid != os.getpid() and _end_orphan(pid)]
    return []


def _end_orphan(pid: int) -> bool:
    try:
        if not _is_orphan(pid):
            return False
        handle = table.open_pidfd(pid)
        if handle is None:
            os.kill(pid, signal.SIGKILL)
            return True
        try:
            # Looked at again with the pidfd open: if the pid has a new owner, the signal goes to the dead one.
            if _is_orphan(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    except OSError:
        pass  # it is gone, or somebody else's
    return False


def _is_orphan(pid: int) -> bool:
    # The last one given: a program of ours that was started by a run has its own, and its children bear that.
    starter = next(
        (
            entry.partition(b"=")[2].decode(errors="replace")
            for entry in table.environ(pid).split(b"\0")
            if entry.startswith(table.WORKER.encode() + b"=")
        ),
        None,
    )
    if starter is None:
        return False
    place, worker, started = starter.rsplit("/", 2) if starter.count("/") > 1 else ("", "", "")
    if place != _place() or not worker.isdecimal():
        return False
    return not table.is_running(int(worker), started.encode())

"""The processes below this one, which adopts those whose parents have ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from stopbench.tools import COMMAND

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, in whatever session it is."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot become a subreaper")


def descendants() -> list[int]:
    """Return the processes below this one that have not ended."""
    return [pid for pid in _below() if _is_running(pid)]


def _below() -> list[int]:
    """Return the processes below this one, those too that nobody has collected."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit() and (status := _status(int(folder.name))) is not None:
            children.setdefault(status[0], []).append(int(folder.name))
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def commands() -> list[str]:
    """Return the descendants that tools have started and that have not ended."""
    return [line for pid in descendants() if str(COMMAND) in (line := _command_line(pid))]


def kill_descendants(spare: Collection[int], seconds: float = 60.0) -> None:
    """Kill everything below this process but those to spare, and wait until it has ended."""
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in _below() if pid not in spare]:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap(alive)
        if time.monotonic() > deadline:
            raise TimeoutError(f"these processes cannot be killed: {alive}")
        time.sleep(0.01)


def reap(pids: Collection[int]) -> None:
    """Collect those that were adopted, so that they are gone."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _status(pid: int) -> tuple[int, str] | None:
    """Return the parent and the state of a process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return int(parent), state


def _is_running(pid: int) -> bool:
    status = _status(pid)
    return status is not None and status[1] not in "ZX" and not _is_killed(pid)


def _is_killed(pid: int) -> bool:
    """Return whether a process has got KILL, and the machine was only too busy to let it die."""
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return True
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask & 1 << signal.SIGKILL - 1 for mask in pending)


def _command_line(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""

"""The processes of a terminal, read from the kernel: the shell, its foreground command and its jobs.

A job that left the session of its shell (``setsid job &``) is found by a variable that the shell was started with.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

_PROC = Path("/proc")

TERMINAL = "STOPPABLE_TERMINAL"
"""The environment variable that identifies a terminal, or several that share the server of tmux."""
_PANE = "TMUX_PANE"


class ProcessInfo(NamedTuple):
    """A process, with its start time, which protects against a reused pid."""

    pid: int
    started: int
    group: int
    session: int
    front: int
    """The group that the terminal belongs to now, or -1."""


def process(pid: int | str) -> ProcessInfo | None:
    """Return a process that is alive, or None."""
    with contextlib.suppress(OSError):
        state, _, group, session, _, front, *more = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        if state not in (b"Z", b"X"):
            return ProcessInfo(int(pid), int(more[13]), int(group), int(session), int(front))
    return None


def shell_of(terminal: Any) -> int | None:
    """Return the pid of the shell of any kind of OpenHands terminal, or None if it is not known."""
    own = getattr(terminal, "process", None)
    pane = getattr(terminal, "pane", None)
    pid = own.pid if own is not None else getattr(pane, "pane_pid", None)
    return None if pid is None or process(pid) is None else int(pid)


def in_front(shell: int) -> int | None:
    """Return the group of the command that a shell waits for, or None if it waits for the next command."""
    found = process(shell)
    return None if found is None or found.front in {-1, found.group} else found.front


def jobs(shell: int) -> set[ProcessInfo]:
    """Return the processes that a shell has started, without the shell."""
    leader = process(shell)
    if leader is None:
        return set()
    numbers = [entry.name for entry in _PROC.iterdir() if entry.name.isdigit()]
    found = [one for number in numbers if (one := process(number)) is not None and one.pid != shell]
    terminal = _terminal_of(shell)
    return {
        one._replace(front=0)
        for one in found
        if one.session == shell
        or (terminal is not None and one.started >= leader.started and _terminal_of(one.pid) == terminal)
    }


def _terminal_of(pid: int) -> tuple[bytes, bytes] | None:
    """Return what identifies the terminal that a process was started in, or None."""
    try:
        entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None  # it is gone, or belongs to another user
    variables = {name: value for name, _, value in (entry.partition(b"=") for entry in entries)}
    terminal = variables.get(TERMINAL.encode())
    # Without the first one, the second may be that of the terminal in which the whole program was started.
    return None if terminal is None else (terminal, variables.get(_PANE.encode(), b""))

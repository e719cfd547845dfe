"""Finds the processes that a block leaves running."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoppable._core.ids import new_id
from stoppable._engine.isolation import host
from stoppable._engine.processes import group, table

_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # the interpreter's own, to its end


def participants() -> dict[object, str]:
    """Return the process groups and agent processes that may be alive, each with its description."""
    return {participant: participant.describe() for participant in (*group.live, *host.live)}


@contextmanager
def watched_processes() -> Iterator[Callable[[], list[str]]]:
    """Yield a function that describes the live processes which were started since the block began.

    It finds them by a mark in their environment, also in another session, and among our children if they have another
    environment.
    """
    mark, outer = new_id(), os.environ.get(table.GROUPS)
    children, known = set(table.children()), participants()
    marked = table.Members(mark)

    def alive() -> list[str]:
        if not table.is_readable():
            return [name for participant, name in participants().items() if participant not in known]
        pids = {*marked.pids(), *(set(table.children()) - children)}
        lines = {pid: _command_line(pid) for pid in sorted(pids)}
        return [f"{pid} ({line})" for pid, line in lines.items() if not any(helper in line for helper in _HELPERS)]

    os.environ[table.GROUPS] = f"{outer}:{mark}" if outer else mark
    try:
        yield alive
    finally:
        if outer is None:
            del os.environ[table.GROUPS]
        else:
            os.environ[table.GROUPS] = outer


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "it has just ended"

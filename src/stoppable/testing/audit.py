"""Finds effects outside all boundaries, through the audit events of the interpreter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from stoppable._core import context
from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode
from stoppable._engine import tasks
from stoppable._engine.isolation import host

_EFFECTS = frozenset(
    {
        "ftplib.connect", "http.client.connect", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.system",
        "shutil.rmtree", "smtplib.connect", "socket.connect", "socket.sendto", "sqlite3.connect", "subprocess.Popen",
        "urllib.Request",
    }
)  # fmt: skip

_watched: dict[RunNode, list[str]] = {}
_is_installed = False


@contextmanager
def unguarded_effects(root: RunNode) -> Iterator[list[str]]:
    """Collect the effects that code of a run and its subtree has outside every boundary while the block runs."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        sys.addaudithook(_hook)  # stays for good: the interpreter has no way to remove one
    found = _watched[root] = []
    try:
        yield found
    finally:
        del _watched[root]


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _watched or not is_effect(event, args):
        return
    run = context.current_node()
    for root, found in list(_watched.items()):
        if run is None or not run.is_within(root) or any(each.members_of(Boundary) for each in run.lineage()):
            continue
        if not _starts_a_worker():
            found.append(f"{event} {args[0]!r} in {_caller()}")


def is_effect(event: str, args: tuple[Any, ...]) -> bool:
    """Return whether an audit event is an effect outside the program."""
    return event in _EFFECTS or (event == "open" and _writes(args))


def _starts_a_worker() -> bool:
    """Return whether the event is the start of an agent process."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != host.__file__:
        frame = frame.f_back
    return frame is not None


def _writes(args: tuple[Any, ...]) -> bool:
    mode = args[1] if len(args) > 1 else None
    return isinstance(mode, str) and any(letter in mode for letter in "wax+")


_STEP = asyncio.Handle._run.__code__
"""Where an event loop calls a step of a task: the code around it is not that of the task."""


def _caller() -> str:
    """Return the innermost place in the user's code; for a task of a library, where the user's task awaits it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_library(frame) and frame.f_code is not _STEP:
        frame = frame.f_back
    if _is_library(frame) and (task := tasks.starter()) is not None:
        awaiting = tasks.suspended_in(task.task.get_coro())
        frame = next((each for each in awaiting if not _is_library(each)), frame)
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _is_library(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    return filename.startswith((sys.base_prefix, sys.prefix, "<frozen")) or "/stoppable/" in filename

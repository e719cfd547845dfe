"""Finds what the code of a run does outside its boundaries, through the audit events of the interpreter.

These are things that a stop cannot follow (bare threads, ``os.system``, ``posix_spawn``, coroutines on another event
loop), and effects outside every boundary, before and after the stop.
"""

from __future__ import annotations

import _thread
import asyncio
import functools
import multiprocessing.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from stoppable._core import context
from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode
from stoppable._engine import tasks
from stoppable._engine.plain import scopes, whose
from stoppable._engine.plain.processes import Processes
from stoppable.testing.audit import is_effect

_STARTS = frozenset({"os.posix_spawn", "os.system"})
_SEEN_TO = (subprocess.__file__, multiprocessing.util.__file__)  # instrument() follows what these start
# Not audited, or not by every Python; threading has its own reference to the first.
_FUNCTIONS = ((_thread, "start_new_thread"), (_thread, "start_new"), (asyncio, "run_coroutine_threadsafe"))


@dataclass
class Rounds:
    """What was found, each with file and line, as the keys of a dict: in order, each once."""

    starts: dict[str, bool] = field(default_factory=dict)
    before: dict[str, bool] = field(default_factory=dict)
    after: dict[str, bool] = field(default_factory=dict)


_watched: dict[RunNode, Rounds] = {}
_is_installed = False


@contextmanager
def rounds_of(root: RunNode) -> Iterator[Rounds]:
    """Collect what code of a run and its subtree does outside its boundaries while the block runs."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        sys.addaudithook(_hook)  # stays for good: the interpreter has no way to remove one
    found = _watched[root] = Rounds()
    originals = [(module, name, getattr(module, name)) for module, name in _FUNCTIONS]
    for module, name, original in originals:
        setattr(module, name, _noted(f"{module.__name__}.{name}", original))
    try:
        yield found
    finally:
        for module, name, original in originals:
            setattr(module, name, original)
        del _watched[root]


def _noted(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        for _, found in _here():
            found.starts[f"{name} in {_place()}"] = True
        return original(*args, **kwargs)

    return noted


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _watched:
        return
    if event in _STARTS:
        if sys._getframe(1).f_code.co_filename not in _SEEN_TO:
            for _, found in _here():
                found.starts[f"{event} in {_place()}"] = True
    elif event != "subprocess.Popen" and is_effect(event, args):  # which is a boundary, with instrument()
        for run, found in _here():
            if not any(_is_guarded(each) for each in run.lineage()):
                noted = found.after if run.closed and not scopes.is_cleaning_up() else found.before
                noted[f"{event} {args[0]!r} in {_place()}"] = True


def _here() -> Iterator[tuple[RunNode, Rounds]]:
    run = context.current_node()
    for root, found in list(_watched.items()):
        if run is not None and run.is_within(root):
            yield run, found


def _is_guarded(run: RunNode) -> bool:
    """Return whether code of a run is inside a boundary; that of a plain process has no code in it."""
    return any(not isinstance(entered.holder, Processes) for entered in run.members_of(Boundary))


def _place() -> str:
    """Return the innermost place in the user's code; for a task of a library, where the user's task awaits it."""
    frame = sys._getframe(2)
    while not _is_users(frame) and frame.f_back is not None:
        frame = frame.f_back
    if not _is_users(frame) and (task := tasks.starter()) is not None:
        frame = next(filter(_is_users, tasks.suspended_in(task.task.get_coro())), frame)
    return _line_of(frame)


def _is_users(frame: FrameType) -> bool:
    # Whose code: these modules count as examples, but here they are what checks.
    is_ours = str(frame.f_globals.get("__name__")).startswith("stoppable.testing.")
    return not is_ours and whose.is_users_file(frame.f_code.co_filename)


def _line_of(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"

"""What a trial observes of a run: what its code does outside its boundaries, and the processes that it leaves running.

The audit events of the interpreter show what a stop cannot follow (bare threads, ``os.system``, ``posix_spawn``,
coroutines on another event loop), and effects outside every boundary, before and after the stop.
"""

from __future__ import annotations

import _thread
import asyncio
import functools
import itertools
import multiprocessing.util
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from stoppable._core import context
from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode
from stoppable._core.values import new_id
from stoppable._engine import tasks
from stoppable._engine.instrumentation import scopes, user_code
from stoppable._engine.instrumentation.processes import Processes
from stoppable._engine.isolation import host
from stoppable._engine.processes import group, table

_EFFECTS = frozenset(
    {
        "ftplib.connect", "http.client.connect", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.system",
        "shutil.rmtree", "smtplib.connect", "socket.connect", "socket.sendto", "sqlite3.connect", "subprocess.Popen",
        "urllib.Request",
    }
)  # fmt: skip
_STARTS = frozenset({"os.posix_spawn", "os.system"})
_FOLLOWED = (subprocess.__file__, multiprocessing.util.__file__)  # instrument() follows what these start
# Not audited, or not by every Python; threading has its own reference to the first.
_FUNCTIONS = ((_thread, "start_new_thread"), (_thread, "start_new"), (asyncio, "run_coroutine_threadsafe"))

_Watcher: TypeAlias = Callable[[RunNode, str, tuple[Any, ...]], None]
"""Called with the run whose code caused an audit event, and the event."""

_watchers: dict[RunNode, _Watcher] = {}
_is_installed = False


@dataclass
class OutsideEffects:
    """What a run did outside its boundaries, each with file and line, as the keys of a dict: in order, each once."""

    starts: dict[str, bool] = field(default_factory=dict)
    """What a stop cannot follow."""
    before: dict[str, bool] = field(default_factory=dict)
    """Effects before the stop, and those of clean-up."""
    after: dict[str, bool] = field(default_factory=dict)
    """Other effects after the stop."""


@contextmanager
def outside_effects(root: RunNode) -> Iterator[OutsideEffects]:
    """Collect what code of a run and its subtree does outside its boundaries while the block runs.

    For a run under ``instrument()``: processes of ``subprocess`` are boundaries there.
    """
    effects = OutsideEffects()

    def note(run: RunNode, event: str, args: tuple[Any, ...]) -> None:
        if event in _STARTS:
            if sys._getframe(2).f_code.co_filename not in _FOLLOWED:
                effects.starts[f"{event} in {_place()}"] = True
        elif event != "subprocess.Popen" and not any(_is_guarded(each) for each in run.lineage()):
            group = effects.after if run.closed and not scopes.is_cleaning_up() else effects.before
            group[f"{event} {args[0]!r} in {_place()}"] = True

    originals = [(module, name, getattr(module, name)) for module, name in _FUNCTIONS]
    for module, name, original in originals:
        setattr(module, name, _noting(root, effects, f"{module.__name__}.{name}", original))
    try:
        with _watch(root, note):
            yield effects
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


@contextmanager
def unguarded_effects(root: RunNode) -> Iterator[list[str]]:
    """Collect the effects that code of a run and its subtree has outside every boundary while the block runs."""
    effects: list[str] = []

    def note(run: RunNode, event: str, args: tuple[Any, ...]) -> None:
        is_guarded = any(each.members_of(Boundary) for each in run.lineage())
        if _is_effect(event, args) and not is_guarded and not _starts_agent_process():
            effects.append(f"{event} {args[0]!r} in {_place()}")

    with _watch(root, note):
        yield effects


@contextmanager
def _watch(root: RunNode, watcher: _Watcher) -> Iterator[None]:
    global _is_installed
    if not _is_installed:
        _is_installed = True
        sys.addaudithook(_hook)  # stays for good: the interpreter has no way to remove one
    _watchers[root] = watcher
    try:
        yield
    finally:
        del _watchers[root]


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _watchers or not (event in _STARTS or _is_effect(event, args)):
        return
    run = context.current_node()
    for root, watcher in list(_watchers.items()):
        if run is not None and run.is_within(root):
            watcher(run, event, args)


def _noting(root: RunNode, effects: OutsideEffects, name: str, original: Any) -> Any:
    """Return a function that notes its calls by code of a run."""

    @functools.wraps(original)
    def noting(*args: Any, **kwargs: Any) -> Any:
        run = context.current_node()
        if run is not None and run.is_within(root):
            effects.starts[f"{name} in {_place()}"] = True
        return original(*args, **kwargs)

    return noting


def _is_effect(event: str, args: tuple[Any, ...]) -> bool:
    """Return whether an audit event is an effect outside the program."""
    return event in _EFFECTS or (event == "open" and _opens_for_writing(args))


def _opens_for_writing(args: tuple[Any, ...]) -> bool:
    mode = args[1] if len(args) > 1 else None
    return isinstance(mode, str) and any(letter in mode for letter in "wax+")


def _is_guarded(run: RunNode) -> bool:
    """Return whether code of a run is inside a boundary; that of a plain process has no code in it."""
    return any(not isinstance(boundary.holder, Processes) for boundary in run.members_of(Boundary))


def _starts_agent_process() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != host.__file__:
        frame = frame.f_back
    return frame is not None


_STEP = asyncio.Handle._run.__code__
"""Where an event loop calls a step of a task: the code around it is not that of the task."""


def _place() -> str:
    """Return the innermost place in the user's code."""
    stack = [frame for frame, _ in traceback.walk_stack(sys._getframe(2))]
    frame = next(filter(_is_users, _candidates(stack)), stack[-1])
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


def _candidates(stack: list[FrameType]) -> Iterator[FrameType]:
    """Yield the frames of this task, then those of the user's task that awaits it, then those around the event loop."""
    yield from itertools.takewhile(lambda frame: frame.f_code is not _STEP, stack)
    if (task := tasks.starter()) is not None:
        yield from tasks.suspended_in(task.task.get_coro())
    yield from stack


def _is_users(frame: FrameType) -> bool:
    return user_code.is_users_file(frame.f_code.co_filename)


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
    children, earlier = set(table.children()), participants()
    members = table.Members(mark)

    def alive() -> list[str]:
        if not table.is_readable():
            return [name for participant, name in participants().items() if participant not in earlier]
        pids = {*members.pids(), *(set(table.children()) - children)}
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

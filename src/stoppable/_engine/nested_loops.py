"""Event loops that the threads of a run run themselves: blocking code calls ``asyncio.run`` for an async tool."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from asyncio import AbstractEventLoop, Task
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

from stoppable._core import context
from stoppable._core.node import RunNode
from stoppable._core.shield import shielded
from stoppable._core.state import Rung
from stoppable._engine import tasks
from stoppable._engine.source_lines import frames_of_thread


def main_task(thread: threading.Thread, stacks: Mapping[int, FrameType] | None = None) -> Task[Any] | None:
    """Return the task that a thread runs to its end, as ``asyncio.run`` does."""
    for frame in frames_of_thread(thread, stacks):
        owner = frame.f_locals.get("self")
        if isinstance(owner, AbstractEventLoop) and frame.f_code.co_name == "run_until_complete":
            main = frame.f_locals.get("future")
        elif isinstance(owner, asyncio.Runner):
            main = frame.f_locals.get("task")  # uvloop has no frames
        else:
            continue
        if isinstance(main, Task):
            return main
    return None


def cancel_main_tasks(rung: Rung, targets: Iterable[tuple[threading.Thread, RunNode]]) -> None:
    """Cancel the tasks that threads run to their end, those that belong to the run of their thread."""
    stacks = sys._current_frames()
    for thread, run in targets:
        task = main_task(thread, stacks)
        if task is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                task.get_loop().call_soon_threadsafe(_cancel, task, rung, run)


def _cancel(task: Task[Any], rung: Rung, run: RunNode) -> None:
    # On the thread of the loop, between two steps of the task. While a step calls blocking code that is a run of its
    # own, the task would seem to belong to that run, but it belongs to the caller (G9).
    scope = tasks.context_of(task).get(context.current)
    home = None if scope is None else scope.run_here()
    if task.done() or home is None or not home.is_within(run):
        return
    participant = tasks.join_task(run, task, task.get_loop())
    if rung is Rung.CANCEL and isinstance(scope, shielded) and not participant.is_shielded():
        return  # not its own shield: it is a part of the clean-up of the code that runs the loop, until KILL
    tasks.cancel(task, rung, run)

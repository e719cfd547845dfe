"""Tasks that the code of a run started and left behind."""

from __future__ import annotations

import asyncio
import sys
from asyncio import AbstractEventLoop, Task
from typing import Any

from stoppable._core import context
from stoppable._core.run import Run
from stoppable._engine import tasks

_MANY = 200
_looks: dict[AbstractEventLoop, dict[Run, list[Task[Any]]]] = {}


def join_leftover(run: Run, loop: AbstractEventLoop) -> None:
    """Make the tasks that were created in the context of a stopped run its participants, now that its body has ended.

    Before 3.12, a task does not tell its context.
    """
    if sys.version_info < (3, 12):
        return
    for task in _by_run(loop).get(run, ()):
        if not task.done() and task is not tasks.current_task(loop):
            tasks.join_task(run, task, loop)


def _by_run(loop: AbstractEventLoop) -> dict[Run, list[Task[Any]]]:
    """Return the tasks of the stopped runs of a loop; where there are many, one look serves all that end in a turn."""
    found = _looks.get(loop)
    if found is None:
        found = {}
        everybody = asyncio.all_tasks(loop)
        for task in everybody:
            scope = task.get_context().get(context.current)  # type: ignore[attr-defined,unused-ignore]
            run = None if scope is None else scope._run_here()
            if run is not None and run._closed:
                found.setdefault(run, []).append(task)
        if len(everybody) > _MANY:
            _looks[loop] = found
            loop.call_soon(_looks.pop, loop, None)
    return found

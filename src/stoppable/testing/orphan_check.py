"""Finds what a test leaves running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stoppable._engine import tasks
from stoppable._engine.threads import pool
from stoppable.agent_check.observations import participants

# Kept for reuse, and is_busy() tells what they do; or the keeper of a process group, which is told as what it keeps.
_OURS = ("stoppable-control", "stoppable-thread", "stoppable-pool", "stoppable-process", "stoppable-watch")


@contextmanager
def no_orphans(within: float = 5.0) -> Iterator[None]:
    """Fail if the block leaves threads, process groups, agent processes or live runs behind.

    They have ``within`` seconds to end.
    """
    before, participants_before = set(threading.enumerate()), participants()
    yield
    deadline = time.monotonic() + within
    tick = threading.Event()
    while True:
        threads = [t.name for t in threading.enumerate() if t not in before and not t.name.startswith(_OURS)]
        threads += [t.name for t in threading.enumerate() if t.name.startswith("stoppable-thread") and pool.is_busy()]
        processes = [name for participant, name in participants().items() if participant not in participants_before]
        runs = [participant.describe() for participant in list(tasks.by_task.values()) if participant.alive()]
        leftovers = threads + processes + runs
        if not leftovers:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"left running: {leftovers}")
        tick.wait(0.005)

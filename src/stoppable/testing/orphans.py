"""Sees what a test leaves running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stoppable._engine import tasks
from stoppable._engine.threads import _pool as pool

_OURS = ("stoppable-control", "stoppable-thread", "stoppable-pool")  # kept for reuse; is_busy() tells what they do


@contextmanager
def no_orphans(within: float = 5.0) -> Iterator[None]:
    """Fail if the block leaves threads or live runs behind; gives them ``within`` seconds to end."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + within
    while True:
        threads = [t for t in threading.enumerate() if t not in before and not t.name.startswith(_OURS)]
        threads += [t for t in threading.enumerate() if t.name.startswith("stoppable-thread") and pool.is_busy()]
        runs = [str(participant.describe()) for participant in list(tasks._by_task.values()) if participant.alive()]
        if not threads and not runs:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"left running: {[t.name for t in threads] + runs}")
        for thread in threads:
            thread.join(0.01)

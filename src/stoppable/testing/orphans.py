"""Sees what a test leaves running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stoppable._engine import tasks

_OURS = frozenset({"stoppable-control"})


@contextmanager
def no_orphans(within: float = 5.0) -> Iterator[None]:
    """Fail if the block leaves threads or live runs behind; gives them ``within`` seconds to end."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + within
    while True:
        threads = [t for t in threading.enumerate() if t not in before and t.name not in _OURS]
        runs = [str(participant.describe()) for participant in list(tasks._by_task.values()) if participant.alive()]
        if not threads and not runs:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"left running: {[t.name for t in threads] + runs}")
        for thread in threads:
            thread.join(0.01)

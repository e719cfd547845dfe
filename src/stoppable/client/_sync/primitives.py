"""What the client for blocking code needs and async code does differently; see ``_async``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from stoppable._core import clock
from stoppable.records import RunRecord

_LOOK_SECONDS = 0.2


def pause(seconds: float) -> None:
    """Sleep on a thread; not ``sync.sleep``, because sending a stop must work while the own run is being stopped."""
    threading.Event().wait(seconds)


def time_limit(seconds: float) -> contextlib.AbstractContextManager[float]:
    """Do nothing: a thread cannot be interrupted, and each request has a timeout."""
    return contextlib.nullcontext(seconds)


def wait_at_most(seconds: float | None, end: Callable[[], RunRecord], look: Callable[[], RunRecord]) -> RunRecord:
    """Return the record at the end of a run, or how it looks after so many seconds."""
    if seconds is None:
        return end()
    deadline = clock.now() + seconds
    while not (record := look()).over and (left := deadline - clock.now()) > 0:
        pause(min(left, _LOOK_SECONDS))
    return record

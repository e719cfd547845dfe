"""The blocking twins of the async names, for agents and tools that are plain functions.

from stoppable import sync

sync.sleep(5)                      # wakes at once on a stop
handle = sync.spawn(agent, "x")    # a child run on a thread of its own
sync.call(agent, "x")              # spawn and wait for the value
"""

from __future__ import annotations

from stoppable._engine.blocking import BlockingHandle, call, sleep, spawn
from stoppable._engine.open_run import open_run

__all__ = ["BlockingHandle", "call", "open_run", "sleep", "spawn"]

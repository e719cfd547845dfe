"""The blocking twins of the async names, for agents and tools that are plain functions.

``sync.sleep(5)`` wakes at once on a stop, ``sync.spawn(agent, "x")`` starts a child run on a thread of its own,
``sync.call(agent, "x")`` waits for its value, and ``sync.run_process([…])`` starts a command that dies with the run.
"""

from __future__ import annotations

from stoppable._engine.blocking import BlockingHandle, call, sleep, spawn
from stoppable._engine.open_run import open_run
from stoppable._engine.processes.process import BlockingProcess
from stoppable._engine.processes.process import open_process_sync as open_process
from stoppable._engine.processes.process import run_process_sync as run_process
from stoppable.supervisor.blocking import Supervisor

__all__ = [
    "BlockingHandle",
    "BlockingProcess",
    "Supervisor",
    "call",
    "open_process",
    "open_run",
    "run_process",
    "sleep",
    "spawn",
]

"""Nearly every public name of ``stoppable``, imported when one of them is first used."""

from stoppable import _engine  # noqa: F401 - the core does nothing to running code without it
from stoppable._core.boundary import boundary, check, should_stop
from stoppable._core.context import Token, current_run, detached
from stoppable._core.hooks import on_end, on_interrupt, on_stop
from stoppable._core.node import emit
from stoppable._core.run import Run, append_partial, set_partial
from stoppable._core.shield import shielded
from stoppable._core.stop import Answer, Receipt, ReceiptEntry
from stoppable._core.values import Fate, Limits, Mode, Outcome, Policy, Reason, ReasonKind, Rung, Status
from stoppable._engine.agents import agent, call, spawn
from stoppable._engine.blocking import run
from stoppable._engine.callback_boundary import Entered, enter
from stoppable._engine.executors import ThreadPoolExecutor
from stoppable._engine.guard import guard
from stoppable._engine.handle import RunHandle
from stoppable._engine.instrumentation.install import instrument, uninstrument
from stoppable._engine.open_run import open_run
from stoppable._engine.processes.adopted import AdoptedProcess, adopt_process
from stoppable._engine.processes.command import CommandNotFound, ProcessFailed, ProcessNotStarted
from stoppable._engine.processes.process import Process, ProcessResult, open_process, run_process
from stoppable._engine.remote import RemoteNode, RemoteStop, remote
from stoppable._engine.streams import stream
from stoppable._engine.threads import bind, to_thread
from stoppable._engine.waits import drained, sleep
from stoppable.errors import (
    AgentNotFound,
    AgentStopped,
    Fenced,
    HoldNotFound,
    InvalidArgument,
    RunConflict,
    RunEnded,
    RunFailed,
    RunHeld,
    RunLost,
    RunNotFound,
    RunStopped,
    StoppableError,
    StoreError,
)

__all__: list[str] = [
    "AdoptedProcess",
    "AgentNotFound",
    "AgentStopped",
    "Answer",
    "CommandNotFound",
    "Entered",
    "Fate",
    "Fenced",
    "HoldNotFound",
    "InvalidArgument",
    "Limits",
    "Mode",
    "Outcome",
    "Policy",
    "Process",
    "ProcessFailed",
    "ProcessNotStarted",
    "ProcessResult",
    "Reason",
    "ReasonKind",
    "Receipt",
    "ReceiptEntry",
    "RemoteNode",
    "RemoteStop",
    "Run",
    "RunConflict",
    "RunEnded",
    "RunFailed",
    "RunHandle",
    "RunHeld",
    "RunLost",
    "RunNotFound",
    "RunStopped",
    "Rung",
    "Status",
    "StoppableError",
    "StoreError",
    "ThreadPoolExecutor",
    "Token",
    "adopt_process",
    "agent",
    "append_partial",
    "bind",
    "boundary",
    "call",
    "check",
    "current_run",
    "detached",
    "drained",
    "emit",
    "enter",
    "guard",
    "instrument",
    "on_end",
    "on_interrupt",
    "on_stop",
    "open_process",
    "open_run",
    "remote",
    "run",
    "run_process",
    "set_partial",
    "shielded",
    "should_stop",
    "sleep",
    "spawn",
    "stream",
    "to_thread",
    "uninstrument",
]

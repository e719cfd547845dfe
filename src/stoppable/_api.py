"""Every public name of ``stoppable``, imported when one of them is first used."""

from stoppable import _engine  # noqa: F401 - the core does nothing to running code without it
from stoppable._core.boundary import boundary, check, should_stop
from stoppable._core.context import current_run, detached
from stoppable._core.hooks import on_end, on_interrupt, on_stop
from stoppable._core.outcome import Outcome
from stoppable._core.partial import append_partial, set_partial
from stoppable._core.policy import Limits, Policy
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.run import Run
from stoppable._core.shield import shielded
from stoppable._core.sink import emit
from stoppable._core.state import Fate, Mode, Rung, Status
from stoppable._core.stop import Answer, Node, Receipt
from stoppable._core.token import Token
from stoppable._engine.agents import agent, call, spawn
from stoppable._engine.callback_boundary import Entered, enter
from stoppable._engine.draining import drained
from stoppable._engine.guard import guard
from stoppable._engine.handle import RunHandle
from stoppable._engine.isolation.host import WorkerDied
from stoppable._engine.open_run import open_run
from stoppable._engine.plain.install import instrument, uninstrument
from stoppable._engine.processes.adopted import AdoptedProcess, adopt_process
from stoppable._engine.processes.calls import ProcessResult, open_process, run_process
from stoppable._engine.processes.errors import CommandNotFound, ProcessFailed, ProcessNotStarted
from stoppable._engine.processes.process import Process
from stoppable._engine.remote import RemoteNode, remote
from stoppable._engine.remote_delivery import RemoteStop
from stoppable._engine.runner import run
from stoppable._engine.streaming.stream import stream
from stoppable._engine.threads import ThreadPoolExecutor, bind, to_thread
from stoppable._engine.waits import sleep
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
from stoppable.records import Event, EventType, Filter, RunRecord, RunSummary
from stoppable.supervisor import BulkStop, Supervisor

__all__ = [
    "AdoptedProcess",
    "AgentNotFound",
    "AgentStopped",
    "Answer",
    "BulkStop",
    "CommandNotFound",
    "Entered",
    "Event",
    "EventType",
    "Fate",
    "Fenced",
    "Filter",
    "HoldNotFound",
    "InvalidArgument",
    "Limits",
    "Mode",
    "Node",
    "Outcome",
    "Policy",
    "Process",
    "ProcessFailed",
    "ProcessNotStarted",
    "ProcessResult",
    "Reason",
    "ReasonKind",
    "Receipt",
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
    "RunRecord",
    "RunStopped",
    "RunSummary",
    "Rung",
    "Status",
    "StoppableError",
    "StoreError",
    "Supervisor",
    "ThreadPoolExecutor",
    "Token",
    "WorkerDied",
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

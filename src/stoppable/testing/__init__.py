"""Tools to test agents, participants and stores with."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from stoppable.testing.clock import FakeClock
from stoppable.testing.contract import (
    Groups,
    ParticipantContract,
    PlainCalls,
    PlainProcesses,
    PlainThreads,
    Tasks,
    Threads,
    Workers,
)
from stoppable.testing.model_server import Failure, Gate, ModelServer, Reply, Stuck, ToolCall
from stoppable.testing.orphans import no_orphans
from stoppable.testing.scripts import FileProbe, LocalProbe, Probe
from stoppable.testing.stops import assert_stops, assert_stops_everywhere

if TYPE_CHECKING:
    from stoppable.testing.store_contract import DurableStoreContract, StoreClock, StoreContract

__all__ = [
    "DurableStoreContract",
    "Failure",
    "FakeClock",
    "FileProbe",
    "Gate",
    "Groups",
    "LocalProbe",
    "ModelServer",
    "ParticipantContract",
    "PlainCalls",
    "PlainProcesses",
    "PlainThreads",
    "Probe",
    "Reply",
    "StoreClock",
    "StoreContract",
    "Stuck",
    "Tasks",
    "Threads",
    "ToolCall",
    "Workers",
    "assert_stops",
    "assert_stops_everywhere",
    "no_orphans",
]

_STORE_CONTRACT = "stoppable.testing.store_contract"


def __getattr__(name: str) -> Any:
    """Import the contract of stores when it is asked for, so that pytest, if it is there, can explain its asserts."""
    if name not in {"DurableStoreContract", "StoreClock", "StoreContract"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "pytest" in sys.modules and _STORE_CONTRACT not in sys.modules:
        sys.modules["pytest"].register_assert_rewrite(_STORE_CONTRACT)
    return getattr(importlib.import_module(_STORE_CONTRACT), name)

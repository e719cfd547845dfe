"""Tools to test agents, participants and stores."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from stoppable.testing.fake_clock import FakeClock
from stoppable.testing.model_server import Failure, ModelServer, Pause, Reply, Stuck, ToolCall
from stoppable.testing.orphan_check import no_orphans
from stoppable.testing.scripts import FileProbe, LocalProbe, ParticipantContract, Probe
from stoppable.testing.stop_assertions import assert_stops, assert_stops_everywhere

if TYPE_CHECKING:
    from stoppable.testing.participant_suite import ParticipantSuite
    from stoppable.testing.store_contract import DurableStoreContract, StoreClock, StoreContract

__all__ = [
    "DurableStoreContract",
    "Failure",
    "FakeClock",
    "FileProbe",
    "LocalProbe",
    "ModelServer",
    "ParticipantContract",
    "ParticipantSuite",
    "Pause",
    "Probe",
    "Reply",
    "StoreClock",
    "StoreContract",
    "Stuck",
    "ToolCall",
    "assert_stops",
    "assert_stops_everywhere",
    "no_orphans",
]

_STORES, _PARTICIPANTS = "stoppable.testing.store_contract", "stoppable.testing.participant_suite"
_LATER = {
    "DurableStoreContract": _STORES,
    "ParticipantSuite": _PARTICIPANTS,
    "StoreClock": _STORES,
    "StoreContract": _STORES,
}


def __getattr__(name: str) -> Any:
    """Import modules that contain tests on first use, so that pytest can rewrite their asserts."""
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "pytest" in sys.modules and module not in sys.modules:
        sys.modules["pytest"].register_assert_rewrite(module)
    return getattr(importlib.import_module(module), name)

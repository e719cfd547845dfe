"""Tools to test agents and participants with."""

from stoppable.testing.clock import FakeClock
from stoppable.testing.contract import Groups, ParticipantContract, Tasks, Threads, Workers
from stoppable.testing.model_server import Failure, Gate, ModelServer, Reply, Stuck, ToolCall
from stoppable.testing.orphans import no_orphans
from stoppable.testing.scripts import FileProbe, LocalProbe, Probe
from stoppable.testing.stops import assert_stops, assert_stops_everywhere

__all__ = [
    "Failure",
    "FakeClock",
    "FileProbe",
    "Gate",
    "Groups",
    "LocalProbe",
    "ModelServer",
    "ParticipantContract",
    "Probe",
    "Reply",
    "Stuck",
    "Tasks",
    "Threads",
    "ToolCall",
    "Workers",
    "assert_stops",
    "assert_stops_everywhere",
    "no_orphans",
]

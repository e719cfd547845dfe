"""Tools to test agents and participants with."""

from stoppable.testing.clock import FakeClock
from stoppable.testing.contract import ParticipantContract, Tasks, Threads, Workers
from stoppable.testing.orphans import no_orphans
from stoppable.testing.scripts import Probe

__all__ = ["FakeClock", "ParticipantContract", "Probe", "Tasks", "Threads", "Workers", "no_orphans"]

"""Tools to test agents and participants with."""

from stoppable.testing.clock import FakeClock

__all__ = ["FakeClock"]

"""What the specification needs to know of a kind of participant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stoppable
from stoppable.testing.scripts import FileProbe, LocalProbe, Probe, Step, perform, perform_blocking


class ParticipantContract(ABC):
    """One kind of participant; the suite in ``tests/spec`` is performed with each."""

    name: str
    strongest: str
    """The rung that ends it whatever it does; "lost" if nothing does, and the run is lost."""

    @abstractmethod
    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a run that performs a script, executed by a participant of this kind."""

    def probe(self, folder: Path) -> Probe:  # noqa: ARG002 - for those that need one
        """Return a probe that its scripts can use."""
        return LocalProbe()

    def __repr__(self) -> str:
        return self.name


class Tasks(ParticipantContract):
    """Asyncio tasks."""

    name = "task"
    strongest = "lost"  # a body may swallow every cancel

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start an async agent."""
        return await stoppable.spawn(perform, steps, probe)


class Threads(ParticipantContract):
    """Threads that execute blocking agents."""

    name = "thread"
    strongest = "lost"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent."""
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(perform_blocking, steps, probe)
        return handle


class Workers(ParticipantContract):
    """Worker processes."""

    name = "worker process"
    strongest = "kill"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start an agent in a process of its own."""
        return await stoppable.spawn(perform, steps, probe, isolation="process")

    def probe(self, folder: Path) -> Probe:
        """Return a probe of files."""
        return FileProbe(folder)

"""What the specification needs to know of a kind of participant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import stoppable
from stoppable.testing.scripts import Probe, Step, perform, perform_blocking


class ParticipantContract(ABC):
    """One kind of participant; the suite in ``tests/spec`` is performed with each."""

    name: str
    obeys_cancel: bool
    """Whether CANCEL ends it; if not, a run that never comes to a boundary is lost."""

    @abstractmethod
    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a run that performs a script, executed by a participant of this kind."""

    def __repr__(self) -> str:
        return self.name


class Tasks(ParticipantContract):
    """Asyncio tasks."""

    name = "task"
    obeys_cancel = True

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start an async agent."""
        return await stoppable.spawn(perform, steps, probe)


class Threads(ParticipantContract):
    """Threads that execute blocking agents."""

    name = "thread"
    obeys_cancel = False

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent."""
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(perform_blocking, steps, probe)
        return handle

"""The interface between the specification and a kind of participant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stoppable
from stoppable.testing import plain_scripts
from stoppable.testing.scripts import FileProbe, LocalProbe, Probe, Step, perform, perform_blocking, perform_in_commands


class ParticipantContract(ABC):
    """One kind of participant; the suite in ``tests/spec`` runs with each."""

    name: str
    strongest: str
    """The rung that always ends it; "lost" if none does."""
    described: str = ""
    """How the receipt of a lost run describes it, for a kind that no rung can end."""

    @abstractmethod
    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a run that performs a script, executed by a participant of this kind."""

    def probe(self, folder: Path) -> Probe:  # noqa: ARG002 - for those that need one
        """Return a probe that its scripts can use."""
        return LocalProbe()

    def label(self, kind: str, name: str) -> str:
        """Return how an effect of a script is listed while it is in flight."""
        return f"{kind}:{name}"

    def __repr__(self) -> str:
        return self.name


class Tasks(ParticipantContract):
    """Asyncio tasks."""

    name = described = "task"
    strongest = "lost"  # a body may swallow every cancel

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start an async agent."""
        return await stoppable.spawn(perform, steps, probe)


class Threads(ParticipantContract):
    """Threads that execute blocking agents."""

    name = described = "thread"
    strongest = "lost"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent."""
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(perform_blocking, steps, probe)
        return handle


class Workers(ParticipantContract):
    """Agent processes (``isolation="process"``)."""

    name = "agent process"
    strongest = "kill"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start an agent in a separate process."""
        return await stoppable.spawn(perform, steps, probe, isolation="process")

    def probe(self, folder: Path) -> Probe:
        """Return a probe of files."""
        return FileProbe(folder)


class Groups(ParticipantContract):
    """Process groups: every effect of a script is a command, and the run is a blocking agent that waits for it.

    The agent runs on a thread, which force cannot end, so that CANCEL and KILL end only the command, with TERM and
    KILL. The agent itself performs the steps that need a token (checks, ``should_stop()``, shields, partials,
    children); in those the command is the effect that is or is not started. A command is not cancelled and registers no
    hooks: G9 and G12 are about the run that waits for it.
    """

    name = "process group"
    strongest = "kill"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent that runs commands."""
        assert isinstance(probe, FileProbe), "see probe()"
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(perform_in_commands, steps, probe)
        return handle

    def probe(self, folder: Path) -> Probe:
        """Return a probe of files."""
        return FileProbe(folder)

    def label(self, kind: str, name: str) -> str:  # noqa: ARG002 - starting a command is a boundary of one kind
        """Return how a command is listed while it is in flight."""
        return f"spawn:{name}"


class PlainThreads(ParticipantContract):
    """Plain code: every effect of a script is a thread; needs ``instrument()``."""

    name = "plain thread"
    strongest = "lost"
    described = "thread"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent that starts threads."""
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(plain_scripts.in_threads, steps, probe)
        return handle

    def label(self, kind: str, name: str) -> str:  # noqa: ARG002 - starting a thread is a boundary of one kind
        """Return how a thread is listed while it is in flight."""
        return f"thread:{name}"


class PlainCalls(PlainThreads):
    """Plain code: every effect of a script is a call in an executor; needs ``instrument()``."""

    name = "plain call"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent that calls functions in an executor."""
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(plain_scripts.in_calls, steps, probe)
        return handle


class PlainProcesses(Groups):
    """Plain code: every effect of a script is a process; needs ``instrument()``."""

    name = "plain process"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent that runs processes."""
        assert isinstance(probe, FileProbe), "see probe()"
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(plain_scripts.in_processes, steps, probe)
        return handle

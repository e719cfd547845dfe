"""The kinds of participants that stoppable has; the tests of the specification run with each of them."""

from __future__ import annotations

import concurrent.futures
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import stoppable
from stoppable import sync
from stoppable.testing import FileProbe, ParticipantContract, Probe
from stoppable.testing.scripts import (
    Effect,
    Request,
    RunChild,
    RunCommand,
    Step,
    Stubborn,
    Wait,
    perform,
    perform_blocking,
    perform_with,
    wait_for,
)


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


class AgentProcesses(ParticipantContract):
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

    def label(self, kind: str, name: str) -> str:
        """Return how a command is listed while it is in flight."""
        return f"spawn:{name}"


class PlainThreads(ParticipantContract):
    """Plain code: every effect of a script is a thread; needs ``instrument()``."""

    name = "plain thread"
    strongest = "lost"
    described = "thread"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent that starts threads."""
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(perform_in_plain_threads, steps, probe)
        return handle

    def label(self, kind: str, name: str) -> str:
        """Return how a thread is listed while it is in flight."""
        return f"thread:{name}"


class PlainCalls(PlainThreads):
    """Plain code: every effect of a script is a call in an executor; needs ``instrument()``."""

    name = "plain call"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent that calls functions in an executor."""
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(perform_in_plain_calls, steps, probe)
        return handle


class PlainProcesses(Groups):
    """Plain code: every effect of a script is a process; needs ``instrument()``."""

    name = "plain process"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a blocking agent that runs processes."""
        assert isinstance(probe, FileProbe), "see probe()"
        handle: stoppable.RunHandle[Any] = await stoppable.spawn(perform_in_plain_processes, steps, probe)
        return handle


def perform_in_commands(steps: Sequence[Step], probe: FileProbe) -> Any:
    """Perform a script as a blocking agent whose effects are commands, so that a stop forces processes."""

    def answer(request: Request) -> None:
        match request:
            case RunCommand(step):
                sync.run_process(probe.command(step), name=step.name)
            case Wait(name):
                wait_for(probe, name)
            case RunChild(inner):
                stoppable.agent(perform_in_commands)(inner, probe)

    return perform_with(steps, probe, answer)


def perform_in_plain_threads(steps: Sequence[Step], probe: Probe) -> Any:
    """Perform a script as a blocking agent whose effects are plain threads."""

    def start(step: Effect | Stubborn) -> None:
        thread = threading.Thread(target=_effect(step, probe), name=step.name)
        thread.start()
        thread.join()

    return _perform_plain(perform_in_plain_threads, steps, probe, start)


def perform_in_plain_calls(steps: Sequence[Step], probe: Probe) -> Any:
    """Perform a script as a blocking agent whose effects are calls in a plain executor."""

    def start(step: Effect | Stubborn) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            executor.submit(_effect(step, probe)).result()

    return _perform_plain(perform_in_plain_calls, steps, probe, start)


def perform_in_plain_processes(steps: Sequence[Step], probe: FileProbe) -> Any:
    """Perform a script as a blocking agent whose effects are plain processes."""

    def start(step: Effect | Stubborn) -> None:
        _, *rest = probe.command(step)
        subprocess.run([step.name, *rest], executable=shutil.which("sh"), check=False)

    return _perform_plain(perform_in_plain_processes, steps, probe, start)


def _effect(step: Effect | Stubborn, probe: Probe) -> Callable[[], None]:
    def effect() -> None:
        probe.note(f"{'stubborn' if isinstance(step, Stubborn) else 'enter'} {step.name}")
        wait_for(probe, step.name)
        probe.note(f"leave {step.name}")

    effect.__qualname__ = step.name
    return effect


def _perform_plain(
    performer: Callable[..., Any], steps: Sequence[Step], probe: Any, start: Callable[[Effect | Stubborn], None]
) -> Any:
    def answer(request: Request) -> None:
        match request:
            case RunCommand(step):
                start(step)
            case Wait(name):
                wait_for(probe, name)
            case RunChild(inner):
                stoppable.agent(performer)(inner, probe)

    return perform_with(steps, probe, answer)

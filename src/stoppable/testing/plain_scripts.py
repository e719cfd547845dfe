"""Scripts whose effects are plain threads, calls and processes, started without functions of stoppable."""

from __future__ import annotations

import concurrent.futures
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

import stoppable
from stoppable.testing.scripts import (
    Command,
    Effect,
    FileProbe,
    Probe,
    Request,
    RunChild,
    Step,
    Stubborn,
    Wait,
    perform_with,
    wait_for,
)


def in_threads(steps: Sequence[Step], probe: Probe) -> Any:
    """Perform a script as a blocking agent whose effects are plain threads."""

    def start(step: Effect | Stubborn) -> None:
        thread = threading.Thread(target=_effect(step, probe), name=step.name)
        thread.start()
        thread.join()

    return _perform(in_threads, steps, probe, start)


def in_calls(steps: Sequence[Step], probe: Probe) -> Any:
    """Perform a script as a blocking agent whose effects are calls in a plain executor."""

    def start(step: Effect | Stubborn) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            executor.submit(_effect(step, probe)).result()

    return _perform(in_calls, steps, probe, start)


def in_processes(steps: Sequence[Step], probe: FileProbe) -> Any:
    """Perform a script as a blocking agent whose effects are plain processes."""

    def start(step: Effect | Stubborn) -> None:
        _, *rest = probe.command(step)
        subprocess.run([step.name, *rest], executable=shutil.which("sh"), check=False)  # noqa: S603 - a test's own

    return _perform(in_processes, steps, probe, start)


def _effect(step: Effect | Stubborn, probe: Probe) -> Callable[[], None]:
    def effect() -> None:
        probe.note(f"{'stubborn' if isinstance(step, Stubborn) else 'enter'} {step.name}")
        wait_for(probe, step.name)
        probe.note(f"leave {step.name}")

    effect.__qualname__ = step.name
    return effect


def _perform(
    performer: Callable[..., Any], steps: Sequence[Step], probe: Any, start: Callable[[Effect | Stubborn], None]
) -> Any:
    def answer(request: Request) -> None:
        match request:
            case Command(step):
                start(step)
            case Wait(name):
                wait_for(probe, name)
            case RunChild(inner):
                stoppable.agent(performer)(inner, probe)

    return perform_with(steps, probe, answer)

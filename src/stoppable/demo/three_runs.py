"""Three runs of ten steps side by side; the middle one is stopped after three, the others complete."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stoppable import RunHandle, Status
from stoppable.demo.agents import stepper
from stoppable.records import Event, EventType, RunRecord
from stoppable.supervisor import Supervisor

LABELS = ("A", "B", "C")
EXPECTED: Mapping[str, Status] = {"A": Status.COMPLETED, "B": Status.STOPPED, "C": Status.COMPLETED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How long it takes, and when the middle run is stopped."""

    steps: int = 10
    seconds: float = 1.0
    stop_after: int = 3


async def play(
    supervisor: Supervisor, scenario: Scenario, on_event: Callable[[str, Event], object]
) -> dict[str, RunRecord]:
    """Start A, B and C, stop B after its third step, and return the three records; ``on_event`` gets every event."""

    async def follow(label: str, handle: RunHandle[Any]) -> None:
        async for event in supervisor.events(handle.id):
            on_event(label, event)
            if label == "B" and _step(event) == scenario.stop_after:
                await supervisor.stop(handle.id, reason="wrong topic", actor="ann")

    handles = {
        label: await supervisor.start(
            functools.partial(stepper, scenario.steps, scenario.seconds, label), labels={"run": label}
        )
        for label in LABELS
    }
    await asyncio.gather(*(follow(label, handle) for label, handle in handles.items()))
    return {label: await supervisor.get(handle.id) for label, handle in handles.items()}


def _step(event: Event) -> int | None:
    return (event.data.get("data") or {}).get("step") if event.type is EventType.PROGRESS else None


def list_mistakes(records: Mapping[str, RunRecord], scenario: Scenario) -> list[str]:
    """Return the expectations that do not hold, one sentence each."""
    mistakes = [
        f"{label} is {records[label].status}, not {status}"
        for label, status in EXPECTED.items()
        if records[label].status is not status
    ]
    outcome = records["B"].outcome
    kept_steps = str(outcome.partial or "").count("\n") if outcome is not None else 0
    if not scenario.stop_after <= kept_steps < scenario.steps:
        mistakes.append(f"B kept {kept_steps} steps, not {scenario.stop_after}")
    return mistakes

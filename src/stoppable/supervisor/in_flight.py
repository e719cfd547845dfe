"""Finds what is in flight in live runs, in whatever process they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stoppable._core.gate import Role
from stoppable._core.node import RunNode
from stoppable.supervisor.core import SupervisorCore


async def in_flight(core: SupervisorCore, run_ids: Iterable[str]) -> Mapping[str, tuple[str, ...] | None]:
    """Return the open boundaries of live runs, without those of their children; None if unknown.

    For runs of this process the answer comes from memory, for all others from their stored logs.
    """
    found: dict[str, tuple[str, ...] | None] = {}
    elsewhere: list[str] = []
    for run_id in run_ids:
        log = core.recorder.logs.get(run_id)
        if log is None:
            elsewhere.append(run_id)
        else:
            found[run_id] = open_in(log.run)
    if elsewhere:
        found |= await core.store.in_flight(elsewhere)
    return found


def open_in(run: RunNode) -> tuple[str, ...]:
    """Return the open boundaries of a run of this process."""
    members = list(run.members or ())
    return tuple(member.label for member in members if member.role is Role.BOUNDARY)  # type: ignore[attr-defined]

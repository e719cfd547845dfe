"""Builds the receipt of a run from what its gate recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from stoppable._core.policy import Policy
from stoppable._core.reach import Reach
from stoppable._core.state import Fate, Mode, Rung, Status
from stoppable._core.stop import Answer, Node, Receipt, Step, Stop

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary
    from stoppable._core.node import RunNode


def write(run: RunNode, answer: Answer) -> Receipt:
    """Return the current receipt; it has nodes once the run has ended."""
    stops = run.stops()
    outcome = run.outcome
    status = run.status
    ended_at = None if outcome is None else outcome.at
    if not stops:
        return Receipt(run_id=run.id, answer=answer, status=status, ended_at=ended_at)
    parts = [stop if stop.target is run else stop.by_run().part(run) for stop in stops]
    in_flight = {boundary: node for part in parts for node, boundary in part.in_flight}
    return Receipt(
        run_id=run.id,
        answer=answer,
        status=status,
        mode=max((stop.mode for stop in stops), key=lambda mode: mode.rank),
        reason=stops[0].reason,
        in_flight=_labels(parts, in_flight),
        nodes=tuple(_nodes(parts, in_flight)) if status.terminal else (),
        entered_after=_entered_after(parts),
        too_late=status in {Status.COMPLETED, Status.FAILED},
        requested_at=stops[0].requested_at,
        acknowledged_at=stops[0].acknowledged_at,
        delivered_at=run.delivered_at,
        ended_at=ended_at,
        blind=any(stop.is_blind for stop in stops) if outcome is None else run.was_blind,
        library_threads=run.library_threads,
        unguarded=run.unguarded,
        ladder=_ladder(run, stops, is_final=status.terminal),
    )


def _ladder(run: RunNode, stops: list[Stop], *, is_final: bool) -> tuple[Step, ...]:
    first, climbed = stops[0], run.climbs
    if not (climbed or is_final or first.is_delayed) and len(stops) == 1:  # the usual case, and the same for many runs
        return _plan(first.target.policy, first.mode, first.grace, first.blind_after)
    steps = tuple(Step(rung=rung, after=at - first.requested_at) for rung, at in climbed)
    if is_final:
        return steps
    planned: dict[Rung, float] = {}
    for stop in stops:
        for rung, seconds in stop.schedule():
            after = stop.requested_at - first.requested_at + seconds
            planned[rung] = min(after, planned.get(rung, after))
    so_far = {step.rung for step in steps}
    return (*steps, *(Step(rung=rung, after=after) for rung, after in planned.items() if rung not in so_far))


@lru_cache(64)
def _plan(policy: Policy, mode: Mode, grace: float | None, blind_after: float | None) -> tuple[Step, ...]:
    steps = policy.schedule(mode, grace, blind_after)
    return tuple(Step(rung=rung, after=after) for rung, after in steps)


def _entered_after(parts: list[Reach]) -> tuple[str, ...]:
    # By identity: each stop of a run records the same entry.
    entries = {id(entry): entry for part in parts for entry in part.after}
    return tuple(label for _, label in entries.values())


def _labels(parts: list[Reach], in_flight: dict[Boundary, RunNode]) -> tuple[str, ...]:
    """Return the labels of boundaries in flight, except streams that were not being read at any of the stops."""
    idle = Counter(boundary for part in parts for boundary in part.idle)
    seen = Counter(boundary for part in parts for _, boundary in part.in_flight) if idle else idle
    return tuple(one.label for one in in_flight if not idle or idle[one] < seen[one])


def _nodes(parts: list[Reach], in_flight: dict[Boundary, RunNode]) -> Iterator[Node]:
    # A dict, because a child that was added while its tree was being marked is recorded twice.
    for node in dict.fromkeys(node for part in parts for node in part.nodes):
        yield Node(run_id=node.id, kind="run", name=node.name, fate=node.status)
    for node, (name, stack) in (pair for part in parts for pair in part.abandoned):
        yield Node(run_id=node.id, kind="participant", name=name, fate=Fate.ABANDONED, stack=stack)
    for boundary, node in in_flight.items():
        yield Node(run_id=node.id, kind=boundary.kind, name=boundary.name or "", fate=boundary.fate or Fate.ABANDONED)

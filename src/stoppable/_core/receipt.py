"""Builds the receipt of a run from what its gate recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from operator import is_
from typing import TYPE_CHECKING

from stoppable._core.policy import Policy
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
    is_within = _within(run, stops)
    in_flight = _in_flight(run, stops, is_within)
    return Receipt(
        run_id=run.id,
        answer=answer,
        status=status,
        mode=max((stop.mode for stop in stops), key=lambda mode: mode.rank),
        reason=stops[0].reason,
        in_flight=_labels(stops, in_flight),
        nodes=tuple(_nodes(stops, in_flight, is_within)) if status.terminal else (),
        entered_after=_entered_after(stops, is_within),
        too_late=status in {Status.COMPLETED, Status.FAILED},
        requested_at=stops[0].requested_at,
        acknowledged_at=stops[0].acknowledged_at,
        delivered_at=run.delivered_at,
        ended_at=ended_at,
        blind=any(stop.is_blind for stop in stops),
        library_threads=run.library_threads,
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


def _within(run: RunNode, stops: list[Stop]) -> Callable[[RunNode], bool]:
    """Return a predicate for the subtree of a run; fast for runs without children, as most are in a large tree."""
    has_children = any(node.parent is run for stop in stops for node in stop.nodes)
    return partial(_is_below, run) if has_children else partial(is_, run)


def _is_below(run: RunNode, node: RunNode) -> bool:
    return node.is_within(run)


def _entered_after(stops: list[Stop], is_within: Callable[[RunNode], bool]) -> tuple[str, ...]:
    # By identity: each stop of a run records the same entry.
    entries = {id(entry): entry for stop in stops if stop.after for entry in stop.after if is_within(entry[0])}
    return tuple(label for _, label in entries.values())


def _in_flight(run: RunNode, stops: list[Stop], is_within: Callable[[RunNode], bool]) -> dict[Boundary, RunNode]:
    """Return the boundaries of a subtree that were open at any of its stops."""
    found: dict[Boundary, RunNode] = {}
    for stop in stops:
        if stop.target is run:  # all of them: checking each one would take most of the time that a large tree needs
            found.update((boundary, node) for node, boundary in stop.in_flight)
        else:
            found.update((boundary, node) for node, boundary in stop.in_flight if is_within(node))
    return found


def _labels(stops: list[Stop], in_flight: dict[Boundary, RunNode]) -> tuple[str, ...]:
    """Return the labels of boundaries in flight, except streams that were not being read at any of the stops."""
    idle = Counter(boundary for stop in stops if stop.idle for boundary in stop.idle)
    seen = Counter(boundary for stop in stops for _, boundary in stop.in_flight) if idle else idle
    return tuple(one.label for one in in_flight if not idle or idle[one] < seen[one])


def _nodes(
    stops: list[Stop], in_flight: dict[Boundary, RunNode], is_within: Callable[[RunNode], bool]
) -> Iterator[Node]:
    # A dict, because a child that was added while its tree was being marked is recorded twice.
    for node in dict.fromkeys(node for stop in stops for node in stop.nodes if is_within(node)):
        yield Node(run_id=node.id, kind="run", name=node.name, fate=node.status)
    for node, (name, stack) in (pair for stop in stops for pair in stop.abandoned):
        if is_within(node):
            yield Node(run_id=node.id, kind="participant", name=name, fate=Fate.ABANDONED, stack=stack)
    for boundary, node in in_flight.items():
        yield Node(run_id=node.id, kind=boundary.kind, name=boundary.name or "", fate=boundary.fate or Fate.ABANDONED)

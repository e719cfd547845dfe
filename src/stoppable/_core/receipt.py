"""Writes the receipt of a run from what its gate recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoppable._core.state import Fate, Rung, Status
from stoppable._core.stop import Answer, Node, Receipt, Stop

if TYPE_CHECKING:
    from stoppable._core.boundary import boundary
    from stoppable._core.run import Run

_FORCED = {Rung.INTERRUPT: Fate.INTERRUPTED, Rung.CANCEL: Fate.CANCELLED, Rung.KILL: Fate.KILLED}


def write(run: Run, answer: Answer) -> Receipt:
    """Return the receipt as it stands now; the nodes are told once the run has ended."""
    stops = run._stops()
    outcome = run.outcome
    status = run.status
    ended_at = None if outcome is None else outcome.at
    if not stops:
        return Receipt(run_id=run.id, answer=answer, status=status, ended_at=ended_at)
    in_flight = _in_flight(run, stops)
    return Receipt(
        run_id=run.id,
        answer=answer,
        status=status,
        mode=max((stop.mode for stop in stops), key=lambda mode: mode.rank),
        reason=stops[0].reason,
        in_flight=tuple(boundary.label for boundary in in_flight),
        nodes=tuple(_nodes(run, stops, in_flight)) if status.terminal else (),
        entered_after=_entered_after(run, stops),
        too_late=status in {Status.COMPLETED, Status.FAILED},
        requested_at=stops[0].requested_at,
        acknowledged_at=stops[0].acknowledged_at,
        delivered_at=run._delivered_at,
        ended_at=ended_at,
    )


def _entered_after(run: Run, stops: list[Stop]) -> tuple[str, ...]:
    # By identity: each stop of a run notes the same entry.
    entries = {id(entry): entry for stop in stops for entry in stop.after if entry[0]._is_within(run)}
    return tuple(label for _, label in entries.values())


def _in_flight(run: Run, stops: list[Stop]) -> dict[boundary, Run]:
    """Return the boundaries of this subtree that were open at any of its stops."""
    return {
        boundary: node
        for stop in stops
        for node, boundary in stop.in_flight
        if stop.target is run or node._is_within(run)
    }


def _nodes(run: Run, stops: list[Stop], in_flight: dict[boundary, Run]) -> Iterator[Node]:
    # A dict, because a child that was born while its tree was being marked is noted twice.
    for node in dict.fromkeys(node for stop in stops for node in stop.nodes):
        if node._is_within(run):
            yield Node(run_id=node.id, kind="run", name=node.name, fate=_fate(node))
    for node, name in (pair for stop in stops for pair in stop.abandoned):
        if node._is_within(run):
            yield Node(run_id=node.id, kind="participant", name=name, fate=Fate.ABANDONED)
    yield from (found for stop in stops for node, found in stop.reported if node._is_within(run))
    for boundary, node in in_flight.items():
        yield Node(run_id=node.id, kind=boundary.kind, name=boundary.name or "", fate=boundary.fate or Fate.ABANDONED)


def _fate(run: Run) -> Fate:
    outcome = run.outcome
    if outcome is None or outcome.status is Status.LOST:
        return Fate.ABANDONED
    if outcome.status is not Status.STOPPED or outcome.rung is None:
        return Fate.FINISHED
    if run.started_at is None:
        return Fate.SKIPPED
    return _FORCED.get(outcome.rung, Fate.FINISHED)

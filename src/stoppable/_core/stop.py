"""One stop as the runs it reached remember it, and the receipt that says what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from stoppable._core import clock
from stoppable._core.reason import Reason
from stoppable._core.state import Fate, Mode, Rung, Status

if TYPE_CHECKING:
    from stoppable._core.boundary import boundary
    from stoppable._core.run import Run


class Answer(StrEnum):
    """What a stop changed."""

    ACCEPTED = "accepted"
    ESCALATED = "escalated"
    ALREADY_STOPPING = "already_stopping"
    ALREADY_FINISHED = "already_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Something that was alive when the stop came, and what became of it.

    ``kind`` is ``run``, the kind of a boundary, or ``participant`` for one that could not be ended.
    """

    run_id: str
    kind: str
    name: str
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The honest answer to a stop: what was in flight and, once ``final``, what happened to every node."""

    run_id: str
    answer: Answer
    status: Status
    mode: Mode | None = None
    reason: Reason | None = None
    in_flight: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    entered_after: tuple[str, ...] = ()
    too_late: bool = False
    requested_at: float | None = None
    acknowledged_at: float | None = None
    delivered_at: float | None = None
    ended_at: float | None = None

    @property
    def final(self) -> bool:
        """Whether nothing in it can change any more."""
        return self.status.terminal


class Stop:
    """A stop request, and whom it reached."""

    __slots__ = (
        "abandoned",
        "acknowledged_at",
        "after",
        "grace",
        "in_flight",
        "mode",
        "nodes",
        "reason",
        "requested_at",
        "target",
    )

    def __init__(self, target: Run, mode: Mode, reason: Reason, grace: float | None = None) -> None:
        self.target = target
        self.mode = mode
        self.reason = reason
        self.grace = grace
        self.requested_at = clock.now()
        self.acknowledged_at: float | None = None
        self.nodes: list[Run] = []
        self.in_flight: list[tuple[Run, boundary]] = []
        self.after: list[tuple[Run, str]] = []
        self.abandoned: list[tuple[Run, str]] = []

    @property
    def kill_at(self) -> float | None:
        """When KILL is due: no shield lasts longer."""
        for rung, seconds in self.target.policy.schedule(self.mode, self.grace):
            if rung is Rung.KILL:
                return self.requested_at + seconds
        return None

"""Why a stopping run is not over yet, and when force comes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stoppable._core.state import Mode, Rung
from stoppable._core.stop import Receipt
from stoppable.records import Climb, RunSummary

if TYPE_CHECKING:
    from stoppable.cli.options import Connected

_FORCE = {
    Rung.INTERRUPT: "interrupted",
    Rung.CANCEL: "cancelled",
    Rung.KILL: "killed",
    Rung.LOST: "given up on",
}

NEVER_LOOKED = "it has met no boundary or check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Countdown:
    """A stop that is not over: what the run waits for, and the next step of the ladder."""

    mode: Mode | None
    in_flight: Sequence[str] | None
    """None if that is not known."""
    ladder: Sequence[Climb]
    is_blind: bool = False
    """Whether the run has met no boundary or check, so that it gets less time."""

    @classmethod
    def of_receipt(cls, receipt: Receipt, in_flight: Sequence[str] | None) -> Countdown:
        """Make one from a receipt, and what is in flight now; the receipt lists what was when the stop came."""
        began = receipt.requested_at or 0.0
        ladder = [Climb(rung=step.rung, at=began + step.after) for step in receipt.ladder]
        return cls(mode=receipt.mode, in_flight=in_flight, ladder=ladder, is_blind=receipt.blind)

    @classmethod
    def of_summary(cls, run: RunSummary) -> Countdown:
        """Make one from a run in a list."""
        return cls(mode=run.mode, in_flight=run.in_flight, ladder=run.ladder)

    def told(self, now: float) -> str:
        """Say it: ``llm:gpt in flight: waiting up to 8 s for its answer``, ``nothing in flight: cancelled in 8 s``."""
        return ": ".join(part for part in (self._why(), self._then(now)) if part)

    def brief(self, now: float) -> str:
        """Say it with the time first, because a table may cut the end: ``cancelled in 8 s: nothing in flight``."""
        return ": ".join(part for part in (self._then(now, brief=True), self._why()) if part)

    def _then(self, now: float, *, brief: bool = False) -> str:
        if self.mode is Mode.COOPERATIVE:
            return "waiting as long as it takes"
        if not self.ladder:
            return "its worker has not seen the stop yet"
        steps = [step for step in self.ladder if step.at > now and (self.in_flight or step.rung is not Rung.INTERRUPT)]
        if not steps:
            return ""
        step = min(steps, key=lambda step: step.at)
        seconds = math.ceil(step.at - now)
        if step.rung is Rung.INTERRUPT:
            return f"waiting up to {seconds} s" + ("" if brief else f" for {_ending(self.in_flight or ())}")
        return f"{_FORCE[step.rung]} in {seconds} s"

    def _why(self) -> str:
        if self.in_flight:
            return f"{counted(self.in_flight)} in flight"
        if self.is_blind:
            return NEVER_LOOKED
        return "nothing in flight" if self.in_flight is not None else "not known what is in flight"


def _ending(in_flight: Sequence[str]) -> str:
    if all(label.partition(":")[0] == "llm" for label in in_flight):
        return "its answer" if len(in_flight) == 1 else "their answers"
    return "it to finish" if len(in_flight) == 1 else "them to finish"


def counted(labels: Iterable[str]) -> str:
    """Return labels, each once: ``llm:gpt ×3, tool:search``."""
    return ", ".join(label if count == 1 else f"{label} ×{count}" for label, count in Counter(labels).items())


def tree_of(client: Connected, run_id: str) -> dict[str, RunSummary]:
    """Return a run and all its descendants by id, each with what is in flight in it and below it at this moment."""
    return with_those_below(client.tree(run_id))


def with_those_below(runs: Iterable[RunSummary]) -> dict[str, RunSummary]:
    """Return runs by id, each with what is in flight in it and in the others of them that are below it."""
    given = {run.id: run for run in runs}
    open_in: dict[str, list[str] | None] = {run_id: [] for run_id in given}
    for run in given.values():
        above: RunSummary | None = run
        while above is not None:
            known = open_in[above.id]
            if run.in_flight is None:
                open_in[above.id] = None
            elif known is not None:
                known.extend(run.in_flight)
            above = given.get(above.parent_id or "")
    return {run_id: replace(run, in_flight=_tuple(open_in[run_id])) for run_id, run in given.items()}


def _tuple(labels: list[str] | None) -> tuple[str, ...] | None:
    return None if labels is None else tuple(labels)

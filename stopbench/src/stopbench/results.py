"""What a run of the benchmark has found: plain values in a file, and what they say of each cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stopbench.judge import SCORES, Score, judge
from stopbench.observation import Observation
from stopbench.scenarios import SCENARIOS

VARIANTS = ("plain", "stoppable", "stoppable-immediate")


@dataclass(slots=True, kw_only=True)
class Cell:
    """All trials of one variant of a subject in one scenario."""

    subject: str
    variant: str
    scenario: str
    trials: list[dict[str, Score]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """The longest time in each trial for which the machine was busy with other things."""
    times: dict[str, Any] = field(default_factory=dict)
    """Of the last trial, in seconds from the press."""

    def add(self, seen: Observation) -> None:
        """Judge a trial."""
        if seen.failure:
            self.failures.append(seen.failure)
            return
        self.trials.append(judge(seen))
        self.gaps.append(seen.longest_gap)
        self.times = timeline(seen)

    def worst(self, name: str) -> Score | None:
        """Return the worst trial of one score; None if it has no meaning here."""
        scores = [trial[name] for trial in self.trials if name in trial]
        if not scores:
            return None
        wrong = [score for score in scores if score.is_wrong] or scores
        return max(wrong, key=lambda score: score.value if isinstance(score.value, int | float) else 0)

    def wrong(self) -> list[str]:
        """Return the scores that are wrong in any trial."""
        return [name for name in SCORES if (score := self.worst(name)) is not None and score.is_wrong]

    def flips(self) -> list[str]:
        """Return the scores that are wrong in some trials and right in others."""
        return [name for name in SCORES if len({trial[name].is_wrong for trial in self.trials if name in trial}) > 1]


def timeline(seen: Observation) -> dict[str, Any]:
    """Return when what happened, in seconds from the press."""
    start = seen.pressed or 0.0

    def moments(times: Iterator[float]) -> list[float]:
        return [round(at - start, 3) for at in times]

    return {
        "effects": moments(event.at for event in seen.events if event.kind == "effect"),
        "tokens": moments(at for request in seen.requests for at in request.tokens),
        "requests": moments(request.at for request in seen.requests),
        "reported": None if seen.reported is None else round(seen.reported - start, 3),
    }


@dataclass(slots=True, kw_only=True)
class Results:
    """The whole table."""

    facts: dict[str, str] = field(default_factory=dict)
    subjects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: what it is, its own cancel, and the versions."""
    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)

    def cell(self, subject: str, variant: str, scenario: str) -> Cell:
        """Return a cell, which may be new."""
        key = (subject, variant, scenario)
        return self.cells.setdefault(key, Cell(subject=subject, variant=variant, scenario=scenario))

    def rows(self) -> Iterator[tuple[str, str, dict[str, Cell]]]:
        """Yield each variant of each subject with its cells, by scenario."""
        for subject in self.subjects:
            for variant in VARIANTS:
                cells = {name: self.cells[key] for name in SCENARIOS if (key := (subject, variant, name)) in self.cells}
                if cells:
                    yield subject, variant, cells

    def worse(self) -> Iterator[str]:
        """Yield what is wrong with stoppable and right with the framework's own cancel."""
        for subject, variant, cells in self.rows():
            for name, cell in cells.items():
                plain = self.cells.get((subject, "plain", name))
                new = [
                    each for each in cell.wrong() if plain is not None and plain.trials and each not in plain.wrong()
                ]
                if new:
                    words = ", ".join(score.words for each in new if (score := cell.worst(each)) is not None)
                    yield f"{subject}, {variant}, {name}: {words}"

    def flipping(self) -> Iterator[str]:
        """Yield what is wrong in some trials of a cell and right in others."""
        for subject, variant, cells in self.rows():
            yield from (
                f"{subject}, {variant}, {name}: {', '.join(flips)}"
                for name, cell in cells.items()
                if (flips := cell.flips())
            )

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"facts": self.facts, "subjects": self.subjects, "cells": [asdict(each) for each in self.cells.values()]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Results:
        """Return what `as_json` was called on."""
        results = cls(facts=value["facts"], subjects=value["subjects"])
        for each in value["cells"]:
            trials = [{name: Score(**score) for name, score in trial.items()} for trial in each["trials"]]
            cell = Cell(**{**each, "trials": trials})
            results.cells[cell.subject, cell.variant, cell.scenario] = cell
        return results


def read(path: Path) -> Results:
    """Read a file; one that is not there has no results."""
    return Results.from_json(json.loads(path.read_text())) if path.exists() else Results()


def write(path: Path, results: Results) -> None:
    """Write the file."""
    path.write_text(json.dumps(results.as_json(), indent=1) + "\n")

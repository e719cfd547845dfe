"""A suite, plain and with instrument(): what is worse with it, and whether it is so again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .suites import FAILED, NOT_RUN, PASSED, SKIPPED, Python, Result, Suite

TIMES = 2
"""How often a file is repeated both ways if one of its tests is worse with instrument()."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A suite on a Python, plain and with instrument()."""

    python: str
    suite: str
    note: str
    plain: Result
    instrumented: Result
    defects: dict[str, str]
    """What is worse with instrument() every time that counts, by the test."""
    flakes: dict[str, str]
    """What was worse once, but not again, or is as bad plain."""


def worse(plain: Result, instrumented: Result) -> dict[str, str]:
    """Return how the tests changed that are worse with instrument(): failed, not run any more, or skipped."""
    both = {
        test: (plain.states.get(test, NOT_RUN), instrumented.states.get(test, NOT_RUN))
        for test in plain.states.keys() | instrumented.states.keys()
    }
    return {
        test: f"{before}, then {after}" + (f": {reason}" if (reason := instrumented.reasons.get(test)) else "")
        for test, (before, after) in sorted(both.items())
        if before not in (FAILED, after) and after != PASSED and (before, after) != (NOT_RUN, SKIPPED)
    }


def compare(python: Python, suite: Suite, logs: Path) -> Comparison:
    """Run a suite both ways, and repeat what is worse with instrument()."""

    def run(name: str, *, instrumented: bool, files: Iterable[str] = ()) -> Result:
        scratch = logs / f"{python.version}-{suite.name}-{name}"
        scratch.mkdir(parents=True)
        return suite.run(python, scratch, instrumented=instrumented, files=files)

    plain, instrumented = run("plain", instrumented=False), run("instrumented", instrumented=True)
    if not plain.states:
        raise RuntimeError(f"{suite.name} ran no test: {plain.log.read_text(errors='replace')[-2000:]}")
    suspects = worse(plain, instrumented)
    files = {plain.files.get(test) or instrumented.files.get(test) for test in suspects}
    if None in files:  # whose file nobody knows
        files = set()  # all of them
    again = [
        (
            run(f"plain-{time}", instrumented=False, files=files),
            run(f"instrumented-{time}", instrumented=True, files=files),
        )
        for time in range(1, TIMES + 1)
        if suspects
    ]
    defects = {
        test: how
        for test, how in suspects.items()
        if any(test in worse(*pair) for pair in again)
        and not any(before.states.get(test) == FAILED for before, _ in again)
    }
    return Comparison(
        python=python.version,
        suite=suite.name,
        note=suite.note(python),
        plain=plain,
        instrumented=instrumented,
        defects=defects,
        flakes={test: how for test, how in suspects.items() if test not in defects},
    )

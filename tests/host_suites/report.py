"""What a comparison says, as a line and as a page."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from .comparison import Comparison
from .suites import FAILED, PASSED, SKIPPED, Result

HEAD = """# The tests of CPython, anyio, requests and httpx, plain and with `instrument()`

Written by `make test-host`. Each suite is run twice in the same environment: plain, and with `stoppable.instrument()`
switched on in the interpreter and in those that it starts, outside runs. A test that passes plain and not with
`instrument()` is repeated twice both ways, with its file. A test that fails plain, because of this machine for example,
shows nothing about `instrument()`. The optional resources of CPython's tests and the tests of packages that need a
network are off, and so is `WithThreadsTestPool.test_terminate`, which may wait for five minutes. A file of CPython
counts as one test more, because it can fail by itself: if it leaves a thread behind, for example. With `instrument()` a
suite takes longer: every interpreter that a test starts imports stoppable. Two suites are run beside each other.
"""


def counts(result: Result) -> Counter[str]:
    """Count the tests in each state."""
    return Counter(result.states.values())


def line(comparison: Comparison) -> str:
    """Say for a terminal what a comparison has shown."""
    plain, instrumented = comparison.plain, comparison.instrumented
    passed = f"{counts(plain)[PASSED]} passed plain and {counts(instrumented)[PASSED]} with stoppable"
    times = f"{plain.seconds:.0f} s and {instrumented.seconds:.0f} s"
    words = [
        f"Python {comparison.python}, {comparison.suite}: {len(plain.states)} tests, {passed}, {times}",
        *(f"  DEFECT: {test}: {how}" for test, how in comparison.defects.items()),
        *(
            f"  needs luck: {test}: {how}, and not again or not only with stoppable"
            for test, how in comparison.flakes.items()
        ),
    ]
    return "\n".join(words)


def machine(*packages: str) -> list[str]:
    """Return what a reader must know about the machine and some packages; the load is that of this moment."""
    sys.path.append(str(Path(__file__).parents[2] / "bench"))
    from machine import facts

    return [f"- {name}: {value}" for name, value in facts(packages) if value and name != "Python"]


def page(head: str, facts: Sequence[str], comparisons: Sequence[Comparison], missing: Sequence[str]) -> str:
    """Return the page with all figures."""
    lines = [head, *facts, "", *_table(comparisons), ""]
    lines += _section("Worse with stoppable", _tests(comparisons, "defects"), "Nothing.")
    lines += _section("Worse once, but not again, or as bad plain", _tests(comparisons, "flakes"), "Nothing.")
    left_out = [
        f"Python {each.python}: {each.plain.deselected} tests of {each.suite}, left out as said above"
        for each in comparisons
        if each.plain.deselected
    ]
    lines += _section("Not run", [*missing, *left_out], "Everything was run.")
    lines += _section("Where the tests are from", [c.note for c in comparisons if c.note], "The installations.")
    return "\n".join(lines)


def _table(comparisons: Sequence[Comparison]) -> Iterator[str]:
    states = (PASSED, SKIPPED, FAILED)
    names = [
        "Python",
        "suite",
        "tests",
        *(f"{state} {mode}" for state in (*states, "time") for mode in ("plain", "with")),
    ]
    yield "| " + " | ".join(names) + " |"
    yield "|---|---|" + "---:|" * 9
    for each in comparisons:
        both = (each.plain, each.instrumented)
        numbers = [counts(result)[state] for state in states for result in both]
        cells = [
            each.python,
            each.suite,
            len(each.plain.states),
            *numbers,
            *(f"{result.seconds:.0f} s" for result in both),
        ]
        yield "| " + " | ".join(map(str, cells)) + " |"


def _tests(comparisons: Sequence[Comparison], kind: str) -> list[str]:
    return [
        f"Python {each.python}: `{test}` ({how})" for each in comparisons for test, how in getattr(each, kind).items()
    ]


def _section(title: str, items: Sequence[str], nothing: str) -> list[str]:
    return [f"## {title}", "", *([f"- {item}" for item in items] or [nothing]), ""]

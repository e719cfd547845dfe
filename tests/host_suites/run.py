"""Runs the tests of CPython and of packages twice: plain, and with instrument() on in every interpreter they start.

What passes plain must pass with instrument() too, because outside runs it changes nothing. A test that does not is
tried twice more both ways, with its whole file: some of these tests need luck. Interpreters that a test starts with
``-I`` or ``-E``, or with an environment of its own, are plain.

    python -m tests.host_suites.run PYTHON... [--only SUITE...]

Each PYTHON is the interpreter of an environment; in its folder are the source distributions: ``anyio/``, ``requests/``,
``httpx/``.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .comparison import Comparison, compare
from .report import HEAD, line, machine, page
from .suites import SUITES, Missing, Python, Suite

PAGE = Path(__file__).parents[2] / "bench/results/host-suites.md"


def main() -> None:
    """Compare all suites, or those that are named, on all Pythons; write the page if it is all of them."""
    parser = argparse.ArgumentParser(description="Run the tests of CPython and of packages with instrument().")
    parser.add_argument("pythons", nargs="+", type=Path, metavar="PYTHON")
    parser.add_argument("--only", nargs="+", default=[], choices=[suite.name for suite in SUITES], metavar="SUITE")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it, and tests need it
    facts = machine()
    logs = Path(tempfile.mkdtemp(prefix="host-suites-"))
    pythons = [Python(path.absolute()) for path in arguments.pythons]
    comparisons, missing = compare_all(pythons, SUITES, arguments.only, logs)
    if not arguments.only:
        PAGE.write_text(page(HEAD, facts, comparisons, missing), encoding="utf-8")
    if any(comparison.defects for comparison in comparisons):
        sys.exit(f"instrument() broke tests of the host; the logs are in {logs}")
    shutil.rmtree(logs)


def compare_all(
    pythons: Sequence[Python], suites: Sequence[Suite], only: Collection[str], logs: Path
) -> tuple[list[Comparison], list[str]]:
    """Compare suites on all Pythons, two beside each other; return also what is missing."""
    pairs = [(python, suite) for python in pythons for suite in suites if not only or suite.name in only]

    def run(pair: tuple[Python, Suite]) -> Comparison | str:
        python, suite = pair
        try:
            comparison = compare(python, suite, logs)
        except Missing as reason:
            answer = f"{suite.name} WAS NOT RUN on Python {python.version}: {reason}"
            print(answer, flush=True)
            return answer
        print(line(comparison), flush=True)
        return comparison

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(run, pairs))
    comparisons = [answer for answer in answers if isinstance(answer, Comparison)]
    return comparisons, [answer for answer in answers if isinstance(answer, str)]


if __name__ == "__main__":
    main()

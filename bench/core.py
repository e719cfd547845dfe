"""Measures the core: a check, a boundary, a run, its memory, and the stop of a tree.

Every number is set against a floor and against peers of the same run; trust the ratios, not the nanoseconds. A full run
writes bench/results/core.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from core_sections import boundaries, checks, memory, runs, trees
from machine import facts
from table import Section, as_json, as_markdown, as_text, summary, write

RESULTS = Path(__file__).parent / "results" / "core.md"
METHOD = """\
Written by `make bench`. Times are the minimum of many short rounds in which all contenders take turns, without the loop
around them and with the garbage collector held. Trust the ratios: each is of two numbers from the same run."""
PACKAGES = ("stoppable", "anyio", "autogen-core", "trio")
SECTIONS: dict[str, Callable[[bool], Section]] = {
    "check": checks.measure_section,
    "boundary": boundaries.measure_section,
    "run": runs.measure_section,
    "memory": memory.measure_section,
    "tree": trees.measure_section,
}


def main() -> None:
    options = _parse()
    if options.memory_child is not None:
        memory.report_as_child(options.memory_child, options.count, traced=options.traced)
        return
    about = facts(PACKAGES)
    sections = []
    for name in options.only or SECTIONS:
        print(f"measuring: {name}", file=sys.stderr)
        section = SECTIONS[name](options.quick)
        sections.append(section)
        if not options.json:
            print(as_text(section), flush=True)
    last_line = summary("core", sections)
    if options.json:
        print(json.dumps(as_json(about, sections, last_line), indent=2))
    else:
        print("\n" + "\n".join(f"{name}: {value}" for name, value in about))
        print(f"\n{last_line}")
    # A part of the table, or a hasty one, must not replace the whole.
    if not options.quick and not options.only:
        write(RESULTS, as_markdown("The core, measured", METHOD, about, sections, last_line))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print machine-readable results")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes no results file")
    parser.add_argument(
        "--only", action="append", choices=list(SECTIONS), help="measure one section; may be repeated; writes no file"
    )
    # How the memory section starts this script anew for each contender.
    parser.add_argument("--memory-child", choices=list(memory.CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=memory.COUNT, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Measures a fleet on Postgres: stops between replicas, appends, bulk stops, a long history, and an idle replica.

Every floor is measured in the same run. `make bench-fleet` installs what it needs; a full run writes
bench/results/fleet.md.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

from machine import facts
from table import Section, as_markdown, as_text, summary, write

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fleet.postgres_server import PostgresServer

from fleet_sections import appends, bulk, history, idle, stops

RESULTS = Path(__file__).parent / "results" / "fleet.md"
METHOD = (
    "Written by `make bench-fleet`. Floor and ours are measured in turns, in one run, over TCP. Costs are medians "
    "unless they say otherwise. Postgres waits for the disk (`fsync`) only for appends and bulk stops: elsewhere the "
    "disk, which a floor waits for too, would hide what is measured."
)
PACKAGES = ("stoppable", "psycopg", "apsw", "celery", "dbos", "arq")
SECTIONS: dict[str, Callable[[PostgresServer, bool], Section]] = {
    "stops": stops.measure_section,
    "appends": appends.measure_section,
    "bulk": bulk.measure_section,
    "history": history.measure_postgres,
    "history-file": history.measure_file,
    "idle": idle.measure_section,
}
ON_DISK = {"appends", "bulk"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes no results file")
    parser.add_argument(
        "--only", action="append", choices=list(SECTIONS), help="measure one section; may be repeated; writes no file"
    )
    options = parser.parse_args()
    about = facts(PACKAGES)
    sections = []
    for name in options.only or SECTIONS:
        print(f"measuring: {name}", file=sys.stderr)
        with contextlib.closing(PostgresServer(fsync=name in ON_DISK)) as server:
            sections.append(SECTIONS[name](server, options.quick))
        print(as_text(sections[-1]), flush=True)
    last_line = summary("fleet", sections)
    print(f"\n{last_line}")
    # A part of the table, or a hasty one, must not replace the whole.
    if not options.quick and not options.only:
        write(RESULTS, as_markdown("A fleet on Postgres, measured", METHOD, about, sections, last_line))


if __name__ == "__main__":
    main()

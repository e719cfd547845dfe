"""Runs the tests of langgraph, langgraph-prebuilt and langchain twice: plain, and with every graph stoppable.

What passes plain must pass with the adapter too. The tests are those of the source distributions, which
``make test-langgraph-upstream`` brings into the folder of the environment:

    python -m tests.adapters.langgraph.upstream [SUITE...]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.host_suites.report import machine, page
from tests.host_suites.run import compare_all
from tests.host_suites.suites import Package, Python

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "bench/results/langgraph-upstream.md"
HEAD = """# The tests of langgraph, langgraph-prebuilt and langchain, plain and with the adapter

Written by `make test-langgraph-upstream`. Each suite is run twice in the same environment: plain, and with the adapter
for every graph, by a plugin of pytest (`tests/adapters/langgraph/plugin/every_graph.py`). With it, what
`StateGraph.compile()` and `@entrypoint` return is a `stoppable_graph`, which includes the agents of `create_agent` and
`create_react_agent`; a `Pregel` that a test puts together by hand has the same settings. So every call of a graph is a
run, without a supervisor, with sealing on, and nodes, models and tools are boundaries of it; `stoppable.instrument()`
is on in the whole process. No run is stopped from outside, but a reader that leaves a stream ends its run.

A test that passes plain and not with the adapter is repeated twice both ways, with its file. A test that fails plain,
because it expects another version of langchain-core for example, shows nothing about the adapter. Tests that need
Postgres or Redis are left out both ways, the suite of langchain is its unit tests, without sockets, and benchmarks are
run as tests.
"""
PLUGIN = HERE / "plugin/every_graph.py"
WITHOUT_SERVICES = ("-knot postgres and not redis", "--timeout=150", "-oaddopts=")
ALL_CHECKPOINTERS = "0"
SUITES = (
    Package("langgraph", plugin=PLUGIN, options=WITHOUT_SERVICES),
    Package(
        "langchain",
        plugin=PLUGIN,
        tests="tests/unit_tests",
        options=(*WITHOUT_SERVICES, "--benchmark-disable", "--disable-socket", "--allow-unix-socket"),
        LANGGRAPH_TEST_FAST=ALL_CHECKPOINTERS,
    ),
    Package("langgraph-prebuilt", plugin=PLUGIN, options=WITHOUT_SERVICES, LANGGRAPH_TEST_FAST=ALL_CHECKPOINTERS),
)


def main() -> None:
    """Compare all suites, or those that are named; write the page if it is all of them."""
    facts = machine("langchain-core", "langgraph-checkpoint", "langgraph-checkpoint-sqlite")
    logs = Path(tempfile.mkdtemp(prefix="langgraph-upstream-"))
    comparisons, missing = compare_all([Python(Path(sys.executable))], SUITES, sys.argv[1:], logs)
    if not sys.argv[1:]:
        PAGE.write_text(page(HEAD, facts, comparisons, missing), encoding="utf-8")
    if missing or any(comparison.defects for comparison in comparisons):
        sys.exit(f"the adapter broke tests, or some were not run; the logs are in {logs}")
    shutil.rmtree(logs)


if __name__ == "__main__":
    main()

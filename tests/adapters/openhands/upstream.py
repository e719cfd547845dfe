"""Runs OpenHands' own tests of conversations and interrupts twice: plain, and with the adapter on.

What passes plain must pass with the adapter too. The packages of OpenHands have no tests, so they come from a checkout:

    python -m tests.adapters.openhands.upstream CHECKOUT
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from tests.host_suites.comparison import worse
from tests.host_suites.suites import FAILED, PASSED, SKIPPED, Result

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "bench/results/openhands-upstream.md"
SUITES = ("test_interrupt.py", "test_local_conversation_mcp.py", "local")
SUITE_SECONDS = 1800
TEST_SECONDS = 150


def main() -> None:
    """Compare both ways, write the page, and fail if a test is worse with the adapter."""
    if len(sys.argv) != 2 or not (folder := Path(sys.argv[1], "tests/sdk/conversation")).is_dir():
        sys.exit(
            "OPENHANDS' OWN TESTS WERE NOT RUN: make test-openhands-upstream OPENHANDS=<checkout of its repository>"
        )
    checkout = folder.parents[2].absolute()
    with tempfile.TemporaryDirectory() as scratch:
        plain = run(checkout, Path(scratch), "plain")
        adapted = run(checkout, Path(scratch), "adapted", "-p", "supervise_all")
    defects = worse(plain, adapted)
    PAGE.write_text(page(checkout, plain, adapted, defects), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    if not plain.states or defects:
        sys.exit("the adapter broke tests of OpenHands" if plain.states else "no test was run")


def run(checkout: Path, scratch: Path, name: str, *options: str) -> Result:
    """Run the tests with the packages of this environment."""
    report, log = scratch / f"{name}.xml", scratch / f"{name}.txt"
    fixed = ["-q", "-oaddopts=", "-pno:cacheprovider", f"--timeout={TEST_SECONDS}", f"--junit-xml={report}"]
    files = [f"tests/sdk/conversation/{suite}" for suite in SUITES]
    variables = {
        "PYTHONPATH": f"{HERE / 'plugin'}{os.pathsep}{checkout}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
    }
    began = time.monotonic()
    with log.open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "pytest", *fixed, *options, *files],
            cwd=checkout,
            env=os.environ | variables,
            stdout=output,
            stderr=output,
            timeout=SUITE_SECONDS,
            check=False,
        )
    if not report.exists():
        sys.exit(f"pytest did not run: {log.read_text()[-2000:]}")
    cases = {f"{case.attrib['classname']}.{case.attrib['name']}": case for case in ET.parse(report).iter("testcase")}
    states = {test: state(case) for test, case in cases.items()}
    return Result(states=states, files={}, seconds=time.monotonic() - began, log=log)


def state(case: ET.Element) -> str:
    """Return how a test ended."""
    kinds = {child.tag for child in case}
    return FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED


def page(checkout: Path, plain: Result, adapted: Result, defects: dict[str, str]) -> str:
    """Return the page with the figures."""
    source = tomllib.loads((checkout / "openhands-sdk/pyproject.toml").read_text())["project"]["version"]
    lines = [
        "# OpenHands' own tests of conversations and interrupts, plain and with the adapter",
        "",
        "Written by `make test-openhands-upstream`:",
        f"openhands-sdk {version('openhands-sdk')}, with the tests of {source}.",
        "Tests that fail plain, because they are of another version for example, show nothing about the adapter.",
        "",
        "| | passed | failed | skipped | time |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, result in (("plain", plain), ("with the adapter", adapted)):
        count = Counter(result.states.values())
        figures = f"{count[PASSED]} | {count[FAILED]} | {count[SKIPPED]} | {result.seconds:.0f} s"
        lines.append(f"| {name} | {figures} |")
    lines += ["", "Worse with the adapter:", ""]
    lines += [f"- {test}: {how}" for test, how in defects.items()] or ["Nothing."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
